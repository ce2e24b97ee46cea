"""The persistent compilation cache, on by default for whole runs."""

from __future__ import annotations

import os
from pathlib import Path

import jax

JAX_MIN_COMPILE_SECONDS = 1.0  # JAX's own default: what compiles faster is not kept


def enable_compilation_cache() -> None:
    """Keep compiled programs in `~/.cache/jaxrl/xla`, so that a second start compiles little.

    JAX keeps no program with host callbacks, so those of host environments compile at each start.
    What the user configured (`JAX_COMPILATION_CACHE_DIR`, `JAX_ENABLE_COMPILATION_CACHE=0`) wins.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    jax.config.update("jax_compilation_cache_dir", str(home / "jaxrl" / "xla"))
    if jax.config.values["jax_persistent_cache_min_compile_time_secs"] == JAX_MIN_COMPILE_SECONDS:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
