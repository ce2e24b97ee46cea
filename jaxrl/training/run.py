"""Training runs: `train`, a pure `lax.scan` over updates, and `run`, with files and a resume."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.distributed import processes
from jaxrl.training import manifest as manifests
from jaxrl.training.compilation import enable_compilation_cache
from jaxrl.training.loggers import Sink
from jaxrl.training.loop import MAX_CHUNK, LoopSettings, RunResult, TrainingLoop
from jaxrl.training.run_dir import explain_full_disk, open_run_dir
from jaxrl.types import Algorithm, Array, Metrics


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
    """Train an agent, with a progress bar, logs, evaluations and checkpoints.

    The first Ctrl-C or SIGTERM stops the run after its current chunk of updates, with a
    checkpoint. A kill loses the updates since the last checkpoint. A resumed run continues bit for
    bit; only host environments, which cannot be saved, start new episodes.

    If several processes train one agent (`jaxrl.distributed.processes`), each calls this with the
    same arguments and with a `run_dir` that all of them see. Each process writes its part of the
    checkpoints; the first one evaluates and writes everything else.

    Args:
      algo: an algorithm with its environments, such as `jaxrl.ppo(jaxrl.make("CartPole-v1", 8))`.
      config: its config, such as `jaxrl.PPOConfig(learning_rate=1e-3)`.
      seed: of all randomness, an integer from 0 to 2^63 - 1.
      total_steps: steps of all environments together, rounded up to whole updates; a resumed run
        counts the steps before.
      run_dir: directory for `manifest.json`, `metrics.jsonl`, `tensorboard/`, `checkpoints/`,
        `summary.json` and `curve.png`; None writes nothing.
      resume: continue the run in `run_dir`, if there is one.
      num_evaluations: number of evaluations, evenly spaced, the last one at the end; 0 for none.
      eval_episodes: whole episodes of an evaluation. They run in separate environments with fixed
        seeds, with actions sampled from the policy.
      log_every: updates per row of the logs, at most 1,024. None for the number of the resumed
        run, or else for about 1,000 rows.
      chunk_updates: updates per call of the compiled program; None for as many as take
        `chunk_seconds`. Logs, checkpoints and signals wait for the end of a chunk.
      chunk_seconds: time of a chunk in seconds, unless `chunk_updates` says its length.
      checkpoint_seconds: seconds between checkpoints, more if writing them (a large replay) would
        take over 5% of the time; 0 for one after every chunk.
      sinks: further places for the rows, such as `jaxrl.training.loggers.WandbSink`.
      progress_bar: show a progress bar on stderr.

    Returns:
      The final state, the summary, whether a signal stopped the run, and its directory.

    Raises:
      ValueError: for bad sizes; for a `run_dir` that holds a run already, or in which another
        process works; if config, environment or seed of a resumed run differ from the saved ones.
      FloatingPointError: if a loss is not finite; checkpoints before it are kept.
      OSError: if `run_dir` cannot be written to (a full disk); what is saved stays.
    """
    check_at_least(1, total_steps=total_steps, eval_episodes=eval_episodes)
    check_at_least(0, num_evaluations=num_evaluations)
    check_at_least(1, chunk_updates=1 if chunk_updates is None else chunk_updates)
    seed = check_seed(seed)
    directory = None if run_dir is None else Path(run_dir)
    steps_per_update = algo.env.num_envs * algo.num_steps(config)
    num_updates = math.ceil(total_steps / steps_per_update)
    settings = LoopSettings(
        num_updates=num_updates,
        steps_per_update=steps_per_update,
        log_every=row_length(log_every, num_updates, directory if resume else None),
        evaluate_at=frozenset(
            math.ceil(num_updates * i / num_evaluations) for i in range(1, num_evaluations + 1)
        ),
        eval_episodes=eval_episodes,
        chunk_updates=chunk_updates,
        chunk_seconds=chunk_seconds,
        checkpoint_seconds=checkpoint_seconds,
    )
    # Tracing finds sizes that do not fit before anything is written.
    init = jax.jit(algo.init).lower(config, jax.random.key(seed))
    enable_compilation_cache()
    if not processes.is_first():
        sinks, progress_bar = (), False
    with contextlib.ExitStack() as stack:
        if directory is not None:
            stack.enter_context(explain_full_disk(directory))
            arguments = {
                "seed": seed,
                "total_steps": total_steps,
                "log_every": settings.log_every,
                "num_evaluations": num_evaluations,
                "eval_episodes": eval_episodes,
            }
            opened = open_run_dir(directory, manifests.describe(algo, config, arguments), resume)
            processes.call_on_first(lambda: stack.enter_context(opened))
            processes.check_shared_file(directory / manifests.NAME)
        loop = TrainingLoop(algo, config, settings, directory, list(sinks), progress_bar)
        stack.callback(loop.close)
        return loop.run(init, seed)


def check_seed(seed: Any) -> int:
    """Return a seed as an `int`; raise `ValueError` unless `jax.random.key` takes it."""
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise ValueError(f"seed must be an integer from 0 to 2^63 - 1, got {seed!r}")
    return number


def check_at_least(least: int, **values: int) -> None:
    """Raise `ValueError` that names the value below `least`."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}")


def row_length(log_every: int | None, num_updates: int, resumed: Path | None) -> int:
    """Return the number of updates of a row.

    Args:
      log_every: the number asked for; None for the resumed run's, or else for 1,000 rows.
      num_updates: of the whole run.
      resumed: directory of the run to resume, if any.
    """
    if log_every is None and resumed is not None and (resumed / manifests.NAME).exists():
        log_every = manifests.read(resumed)["log_every"]
    if log_every is None:
        log_every = min(max(1, num_updates // 1000), MAX_CHUNK)
    if not 1 <= log_every <= MAX_CHUNK:
        raise ValueError(f"log_every must be from 1 to {MAX_CHUNK}, got {log_every}")
    return int(processes.broadcast(np.int32(log_every)))


def rerun(run_dir: str | Path, new_run_dir: str | Path, **arguments: Any) -> RunResult:
    """Repeat a run from its manifest, into another directory.

    Args:
      run_dir: directory of the run to repeat.
      new_run_dir: directory of the new run.
      **arguments: arguments of `run` that replace those of the old run; and `network`,
        `make_algorithm` and `env` as in `load_policy`, if the run had its own.
    """
    manifest = manifests.read(run_dir)
    own = (arguments.pop(name, None) for name in ("network", "make_algorithm", "env"))
    algo, config = manifests.rebuild(manifest, *own)
    old_arguments = {name: manifest[name] for name in manifests.ARGUMENTS}
    return run(algo, config, run_dir=new_run_dir, **(old_arguments | arguments))
