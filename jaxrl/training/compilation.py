"""Compilation: the cache of compiled programs on disk, and options for XLA."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax

from jaxrl.types import Algorithm

JAX_MIN_COMPILE_SECONDS = 1.0  # JAX's own default: it does not cache what compiles faster


def cache_directory() -> Path | None:
    """Return jaxrl's cache, `~/.cache/jaxrl`; None for a user without a home directory."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(base) / "jaxrl"


def enable_compilation_cache() -> None:
    """Cache compiled programs in `~/.cache/jaxrl/xla`, so that a second start compiles little.

    jax 0.10 caches no program with host callbacks, so programs with host environments compile at
    each start. The user's settings (`JAX_COMPILATION_CACHE_DIR`, `JAX_ENABLE_COMPILATION_CACHE=0`)
    take precedence.
    """
    directory = cache_directory()
    if directory is None or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    jax.config.update("jax_compilation_cache_dir", str(directory / "xla"))
    if jax.config.values["jax_persistent_cache_min_compile_time_secs"] == JAX_MIN_COMPILE_SECONDS:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def compiler_options(algo: Algorithm, config: Any) -> dict[str, Any]:
    """Return the fastest `jax.jit(..., compiler_options=...)` for a program that trains an agent.

    XLA uses vectors of 256 bits on a CPU that has 512. Programs of dense and recurrent networks
    are up to 17% faster with 512, convolutions 14% slower (experiments/benchmarks/NOTES.md). A
    width set in `XLA_FLAGS` stays.
    """
    width = "xla_cpu_prefer_vector_width"
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    params = jax.tree.leaves(getattr(state, "params", None))
    has_convolutions = any(x.ndim > 2 for x in params)
    if has_convolutions or not params or width in os.environ.get("XLA_FLAGS", ""):
        return {}
    return {width: 512}
