"""The command line: `jaxrl` and its subcommands."""

__all__ = [
    "arguments",
    "autotune_flags",
    "compare",
    "doctor",
    "envs",
    "play",
    "report",
    "submit",
    "sweep",
    "sweep_flags",
    "train",
    "train_flags",
]
