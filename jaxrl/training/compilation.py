"""The compiled program of a run, a chunk of updates; options for XLA; the cache on disk."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.training.progress.schedule import MAX_CHUNK
from jaxrl.types import Algorithm, Array, Metrics, check_agent

JAX_MIN_COMPILE_SECONDS = 1.0  # JAX's own default: it does not cache what compiles faster


def run_chunk(
    algo: Algorithm, config: Any, state: Any, num_updates: Array | int, size: int = MAX_CHUNK
) -> tuple[Any, Metrics]:
    """Do `num_updates` updates, at most `size`; the number may be traced.

    Returns:
      The state, and metrics `[size]`, zeros past the updates done.
    """
    update = jax.jit(algo.update, inline=True)  # so that it is traced only once
    _, metrics = jax.eval_shape(update, config, state)
    rows = jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), metrics)

    def step(i: Array, carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
        state, rows = carry
        state, metrics = update(config, state)
        return state, jax.tree.map(lambda all, one: all.at[i].set(one), rows, metrics)

    return jax.lax.fori_loop(0, num_updates, step, (state, rows))


train_chunk = jax.jit(run_chunk, static_argnums=(0, 4), donate_argnums=2)
"""`run_chunk`, compiled; the state is donated."""


def compile_chunk(algo: Algorithm, config: Any, state: Any) -> jax.stages.Compiled:
    """Return `train_chunk` of an algorithm, compiled: call it with config, state and int32."""
    lowered = train_chunk.lower(algo, config, state, jnp.int32(1))
    return lowered.compile(compiler_options(algo, config))


def is_out_of_memory(error: Exception) -> bool:
    """Return whether JAX raised an error since the memory of a device did not suffice."""
    # Allocations on a GPU have the first text, those of jax 0.11 on a CPU only the second.
    texts = ("RESOURCE_EXHAUSTED", "Out of memory")
    return isinstance(error, jax.errors.JaxRuntimeError) and any(t in str(error) for t in texts)


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
    take precedence. Without them, a directory that others could write to is not used, with a
    warning, because JAX runs the programs that it finds in its cache.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    try:
        made = make_cache()
    except OSError as error:
        warnings.warn(f"compiled programs are not cached: {error}", stacklevel=2)
        return
    if made is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(made))
    if jax.config.values["jax_persistent_cache_min_compile_time_secs"] == JAX_MIN_COMPILE_SECONDS:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def make_cache() -> Path | None:
    """Make and return jaxrl's directory of compiled programs; None without a home directory.

    Raises:
      OSError: if it is another user's, or cannot be made.
    """
    directory = cache_directory()
    if directory is None:
        return None
    for own in (directory, directory / "xla"):
        make_private(own)
    return directory / "xla"


def make_private(directory: Path) -> None:
    """Make a directory that only this user can write to, or take the permission from others.

    Raises:
      OSError: if it is another user's, or cannot be made.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not hasattr(os, "getuid"):  # Windows: home directories are private
        return
    found = directory.stat()
    if found.st_uid != os.getuid():
        raise PermissionError(
            f"{directory} is another user's, who could put programs there for you to run; set "
            "JAX_COMPILATION_CACHE_DIR or XDG_CACHE_HOME to a directory of your own"
        )
    if found.st_mode & 0o022:
        directory.chmod(found.st_mode & 0o7755)


def compiler_options(algo: Algorithm, config: Any) -> dict[str, Any]:
    """Return the fastest `jax.jit(..., compiler_options=...)` for a program that trains an agent.

    XLA uses vectors of 256 bits on a CPU that has 512. Programs of dense and recurrent networks
    are up to 17% faster with 512, convolutions 14% slower
    (docs/explanation/benchmark-notes.md). A width set in `XLA_FLAGS` stays.
    """
    check_agent(algo, config)
    width = "xla_cpu_prefer_vector_width"
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    params = jax.tree.leaves(getattr(state, "params", None))
    has_convolutions = any(x.ndim > 2 for x in params)
    if has_convolutions or not params or width in os.environ.get("XLA_FLAGS", ""):
        return {}
    return {width: 512}
