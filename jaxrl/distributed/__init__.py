"""Train one agent on several devices and in several processes."""
