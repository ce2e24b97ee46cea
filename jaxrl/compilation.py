"""The persistent compilation cache, on by default for whole runs."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def enable_compilation_cache() -> None:
    """Keep compiled programs in `~/.cache/jaxrl/xla`, so that a second start compiles nothing.

    What the user configured (`JAX_COMPILATION_CACHE_DIR`, `JAX_ENABLE_COMPILATION_CACHE=0`) wins.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    jax.config.update("jax_compilation_cache_dir", str(home / "jaxrl" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
