"""The flags of commands: their data classes, how they are read, and how errors name them."""

__all__ = ["arguments", "autotune", "config_file", "sweep", "train"]
