"""One agent, trained on several devices and in several processes."""

__all__ = ["liveness", "processes", "spread"]
