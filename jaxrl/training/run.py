"""Training: `train`, a pure `lax.scan` over updates, and `run`, which drives an experiment."""

from __future__ import annotations

import contextlib
import errno
import importlib
import math
import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.distributed import processes
from jaxrl.training import manifest as manifests
from jaxrl.training.checkpoint import check_path
from jaxrl.training.compilation import enable_compilation_cache
from jaxrl.training.loggers import Sink
from jaxrl.training.loop import MAX_CHUNK, LoopSettings, Runner, RunResult
from jaxrl.types import Algorithm, Array, Metrics


@contextlib.contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Keep other processes out of a directory, as long as the block or this process lasts.

    It is the directory itself that is locked, so nothing is left behind. Where the system or the
    file system has no such locks (Windows, some network drives), nobody is kept out.

    Raises:
      ValueError: if another process, or another block of this one, holds it.
    """
    try:
        fcntl = importlib.import_module("fcntl")
    except ImportError:
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"another process is at work in {directory}; wait until it has ended, or choose "
                "another directory"
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explain_full_disk(directory: Path) -> Iterator[None]:
    """A full disk is an `OSError` that says where, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"{directory} could not be written to: {error}. What was saved there stays; free some "
            "space and resume"
        ) from error


def train(algo: Algorithm, config: Any, key: Array, num_updates: int) -> tuple[Any, Metrics]:
    """Train from scratch for `num_updates` updates.

    Pure, so `jit` it (`static_argnums=(0, 3)`), `vmap` it over keys and config leaves, `pmap` it.

    Returns:
      The final state, and metrics whose leaves are `[num_updates]`.
    """

    def step(state: Any, _: None) -> tuple[Any, Metrics]:
        return algo.update(config, state)

    return jax.lax.scan(step, algo.init(config, key), length=num_updates)


def run(
    algo: Algorithm,
    config: Any,
    *,
    seed: int = 0,
    total_steps: int,
    run_dir: str | Path | None = None,
    resume: bool = False,
    num_evaluations: int = 1,
    eval_episodes: int = 16,
    log_every: int | None = None,
    chunk_updates: int | None = None,
    chunk_seconds: float = 2.0,
    checkpoint_seconds: float = 10.0,
    sinks: Sequence[Sink] = (),
    progress_bar: bool = True,
) -> RunResult:
    """Train with progress, logs, evaluations and checkpoints.

    Of several processes that train one agent (`jaxrl.distributed.processes`), all call this with the same
    arguments and a `run_dir` that all can reach; the first one evaluates and writes what is there
    but for checkpoints, of which each writes its part.

    Ctrl-C and SIGTERM stop after the current chunk, with a checkpoint; a kill loses at most what
    came after the last checkpoint. Resuming continues bit for bit for environments that can be
    saved; host environments start new episodes.

    Args:
      total_steps: environment steps over all environments, rounded up to whole updates.
      run_dir: receives `manifest.json`, `metrics.jsonl`, `tensorboard/`, `checkpoints/`,
        `summary.json` and `curve.png`; None keeps nothing.
      resume: continue the run in `run_dir` if there is one, to `total_steps` in all.
      num_evaluations: evenly spaced, the last one at the end; 0 for none.
      eval_episodes: whole episodes of each evaluation, of a separate set of environments with
        fixed seeds, actions sampled from the policy.
      log_every: updates a row; None for about 1000 rows in all, or more in very long runs.
      chunk_updates: updates between returns to the host; None for about `chunk_seconds` of them.
      checkpoint_seconds: time between checkpoints, taken between chunks; more if writing one (a
        large replay) would take over 5% of the time; 0 for one after every chunk.
      sinks: further sinks for rows.

    Raises:
      ValueError: for bad sizes; a `run_dir` that holds a run already, or that another process is
        at work in; a resumed run whose config, environment or seed differs from the saved one.
      FloatingPointError: when a loss is no longer finite; checkpoints before it are kept.
      OSError: if `run_dir` cannot be written to (a full disk); what was saved stays.
    """
    _check_counts(total_steps, num_evaluations, eval_episodes, chunk_updates)
    seed = check_seed(seed)
    steps_per_update = algo.env.num_envs * algo.num_steps(config)
    num_updates = math.ceil(total_steps / steps_per_update)
    directory = None if run_dir is None else Path(run_dir)
    log_every = _row_length(log_every, num_updates, directory if resume else None)
    settings = LoopSettings(
        num_updates=num_updates,
        steps_per_update=steps_per_update,
        log_every=log_every,
        evaluate_at=frozenset(
            math.ceil(num_updates * i / num_evaluations) for i in range(1, num_evaluations + 1)
        ),
        eval_episodes=eval_episodes,
        chunk_updates=chunk_updates,
        chunk_seconds=chunk_seconds,
        checkpoint_seconds=checkpoint_seconds,
    )
    arguments = {
        "seed": seed,
        "total_steps": total_steps,
        "log_every": log_every,
        "num_evaluations": num_evaluations,
        "eval_episodes": eval_episodes,
    }
    assert set(arguments) == set(manifests.ARGUMENTS)
    # Tracing finds sizes that do not fit before anything is written.
    init = jax.jit(algo.init).lower(config, jax.random.key(seed))
    enable_compilation_cache()
    if not processes.is_first():
        sinks, progress_bar = (), False
    with contextlib.ExitStack() as stack:
        if directory is not None:
            stack.enter_context(explain_full_disk(directory))
            opened = open_run_dir(directory, manifests.describe(algo, config, arguments), resume)
            processes.on_first(lambda: stack.enter_context(opened))
            processes.check_shared(directory / manifests.NAME)
        runner = Runner(algo, config, seed, init, settings, directory, list(sinks), progress_bar)
        stack.callback(runner.close)
        return runner.run()


def check_seed(seed: Any) -> int:
    """As Python's own number; raises unless `jax.random.key` takes it."""
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise ValueError(f"seed must be an integer from 0 to 2^63 - 1, got {seed!r}")
    return number


def _check_counts(
    total_steps: int, num_evaluations: int, eval_episodes: int, chunk_updates: int | None
) -> None:
    for name, value, least in (
        ("total_steps", total_steps, 1),
        ("num_evaluations", num_evaluations, 0),
        ("eval_episodes", eval_episodes, 1),
        ("chunk_updates", 1 if chunk_updates is None else chunk_updates, 1),
    ):
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}")


def _row_length(log_every: int | None, num_updates: int, resumed: Path | None) -> int:
    """Updates of a row: as asked for, else as in the run that is resumed, else for 1000 rows."""
    if log_every is None and resumed is not None and (resumed / manifests.NAME).exists():
        log_every = manifests.read(resumed)["log_every"]
    if log_every is None:
        log_every = min(max(1, num_updates // 1000), MAX_CHUNK)
    if not 1 <= log_every <= MAX_CHUNK:
        raise ValueError(f"log_every must be from 1 to {MAX_CHUNK}, got {log_every}")
    return int(processes.agree(np.int32(log_every)))


def rerun(run_dir: str | Path, new_run_dir: str | Path, **arguments: Any) -> RunResult:
    """Repeat a run from its manifest, into another directory.

    Args:
      **arguments: further ones of `run` (`network`, `make_algorithm` and `env` as in `load_policy`,
        if the run had its own).
    """
    manifest = manifests.read(run_dir)
    own = (arguments.pop(name, None) for name in ("network", "make_algorithm", "env"))
    algo, config = manifests.rebuild(manifest, *own)
    same = {name: manifest[name] for name in manifests.ARGUMENTS}
    return run(algo, config, run_dir=new_run_dir, **(same | arguments))


@contextlib.contextmanager
def open_run_dir(directory: Path, manifest: dict[str, Any], resume: bool) -> Iterator[None]:
    """Make the run's directory and write its manifest; refuse what would damage another run.

    Until the block ends, no other process may open it.
    """
    check_path(directory)
    if (directory / manifests.NAME).exists():
        if not resume:
            raise ValueError(
                f"{directory} already holds a run; resume it (resume=True, --resume) or choose "
                "another directory"
            )
        old = manifests.read(directory)
        changes = manifests.differences(old, manifest)
        if changes and not any((directory / "checkpoints").glob("[0-9]*")):
            old, changes = manifest, []  # there is nothing to go on from
        if changes:
            raise ValueError(
                f"the run in {directory} was started otherwise; start a new one, or undo:\n  "
                + "\n  ".join(changes)
            )
        manifest = manifests.resumed(old, manifest)
    elif directory.exists() and {x.name for x in directory.iterdir()} - {manifests.UNFINISHED}:
        raise ValueError(f"{directory} is not empty and holds no run; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    with directory_lock(directory):
        manifests.write(directory, manifest)
        yield
