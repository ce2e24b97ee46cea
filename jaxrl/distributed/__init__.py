"""One agent, trained on several devices and in several processes."""
