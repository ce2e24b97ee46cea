"""The command line: `jaxrl` and its subcommands."""

__all__ = [
    "compare",
    "doctor",
    "envs",
    "flags",
    "play",
    "report",
    "reproduce",
    "submit",
    "sweep",
    "train",
]
