"""The command line: `jaxrl` and its subcommands."""

__all__ = [
    "arguments",
    "autotune_flags",
    "compare",
    "doctor",
    "envs",
    "play",
    "presets",
    "records",
    "submit",
    "sweep",
    "train",
]
