"""One training run: its program, loop, files, policy and evaluation; populations of runs."""

__all__ = [
    "autotune",
    "checkpoint",
    "compilation",
    "evaluate",
    "loggers",
    "loop",
    "manifest",
    "policy",
    "population",
    "progress",
    "run",
    "run_dir",
]
