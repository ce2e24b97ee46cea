"""One agent, trained on several devices and in several processes."""

__all__ = ["processes", "spread"]
