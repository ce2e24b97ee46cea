"""A sweep: a hyperparameter search driven from the host, with a study, live logs and checkpoints.

Where `search` is one program and takes traced fields only, a sweep takes any, keeps every trial in
an Optuna study that several sweeps may share, shows what it does, keeps the best agents, and goes
on after a kill. The decisions are the same functions, and with the sampler "random" so are the
trials.

If only traced fields are searched, all lanes are one gang: one program, compiled once. If static
ones are searched too, each lane is a gang of its own that runs whichever program its trial needs,
compiled for each combination of static values on each device. The lanes are dealt to the devices,
none of which waits for another, but for checkpoints; so which trials have reported before another
depends on their speed there. With all lanes on one device (`strategy="vmap"`) it does not.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl.training import manifest as manifests
from jaxrl.training.compilation import enable_compilation_cache
from jaxrl.training.population import Strategy, as_strategy
from jaxrl.training.run import check_seed
from jaxrl.training.run_dir import explain_full_disk
from jaxrl.tuning import space as spaces
from jaxrl.tuning.schedulers import Scheduler, check_counts
from jaxrl.tuning.sweeps import state
from jaxrl.tuning.sweeps.display import Board
from jaxrl.tuning.sweeps.lanes import Groups
from jaxrl.tuning.sweeps.loop import Sweep
from jaxrl.tuning.sweeps.ranking import ranked
from jaxrl.tuning.sweeps.samplers import check_sampler
from jaxrl.tuning.sweeps.settings import UNITS, Phase, SweepSettings
from jaxrl.tuning.sweeps.storage import explain_storage_failure
from jaxrl.types import Algorithm


class SweepResult(NamedTuple):
    """What `sweep` returns."""

    summary: dict[str, Any]
    """As in `sweep.json`: trials with values, scores and status, spans, occupancy."""
    interrupted: bool
    run_dir: Path

    @property
    def best(self) -> dict[str, Any] | None:
        """The trial with the best score of all phases."""
        return next(iter(ranked(self.summary["trials"])), None)


def sweep(
    algo: Algorithm,
    config: Any,
    space: spaces.Space,
    scheduler: Scheduler,
    *,
    num_lanes: int,
    phase: Phase,
    run_dir: str | Path,
    seed: int = 0,
    sampler: str = "random",
    storage: str | None = None,
    study_name: str | None = None,
    strategy: str | Strategy = "auto",
    resume: bool = False,
    keep_best: int = 3,
    keep_best_per: str | None = None,
    worker: str | None = None,
    heartbeat_seconds: int = 60,
    checkpoint_seconds: float = 30.0,
    chunk_seconds: float = 2.0,
    progress_bar: bool = True,
) -> SweepResult:
    """Search for the config that scores best; a phase's score is the mean return of its episodes.

    Ctrl-C and SIGTERM stop after the current chunk, with a checkpoint. A resumed sweep ends with
    the same trials, scores and decisions as an uninterrupted one, if its environments run on the
    device, no other worker interferes, and lanes of static fields share one device.

    Args:
      config: gives the values that are not searched.
      num_lanes: trials trained at the same time.
      run_dir: receives `sweep.json`, `metrics.jsonl`, `checkpoints/`, the best agents under
        `best/`, and `study.db` unless `storage` says otherwise.
      sampler: "random" (from `seed` alone), or Optuna's "tpe", "cmaes", "gp", which learn from the
        trials that have ended; "gp" only from those that no scheduler stopped.
      storage: a database URL (see `Store`); several workers with one URL and `study_name` share
        the trials. Schedulers that pause trials need all of them in one process. A resumed sweep
        knows its own, but for the password, which is kept in no file.
      strategy: of `jaxrl.population`, or "auto" for the fastest by a short measurement. Of static
        fields only the devices matter: one, or as many as divide the lanes evenly ("shard-..."), or
        all ("auto").
      keep_best: how many of the best agents are kept, for `jaxrl.load_policy`.
      keep_best_per: keep the best agent of each value of this hyperparameter too.
      worker: this process's name in the study, the same after a restart; None for one made of the
        host and the run directory.

    Raises:
      ValueError: for bad values, a `run_dir` that holds a sweep already, or one that differs, or
        that another process is at work in; a study that is not this sweep's; in processes joined
        by `jaxrl.distributed.processes`.
      ImportError: without Optuna.
      OSError: if files or the study cannot be written (a full disk).
    """
    directory = Path(run_dir)
    # A directory that was moved, or is resumed on another machine, goes on with the same study.
    known = state.read(directory) if resume and (directory / state.NAME).exists() else {}
    settings = SweepSettings(
        num_lanes=min(num_lanes, scheduler.num_trials),
        phase=phase,
        run_dir=directory,
        seed=check_seed(seed),
        sampler=sampler,
        storage=storage or known.get("storage") or f"sqlite:///{directory / 'study.db'}",
        study_name=study_name or known.get("study") or directory.name,
        strategy=strategy,
        keep_best=keep_best,
        keep_best_per=keep_best_per,
        worker=worker or known.get("worker") or f"{platform.node()}:{directory.resolve()}",
        heartbeat_seconds=heartbeat_seconds,
        checkpoint_seconds=checkpoint_seconds,
        chunk_seconds=chunk_seconds,
    )
    _check(algo, config, space, scheduler, settings)
    description = state.describe(
        algo, config, space, scheduler, num_lanes, phase, settings.seed, sampler, str(strategy)
    )
    description |= {
        "study": settings.study_name,
        "storage": manifests.without_passwords(storage) if storage else known.get("storage"),
        "worker": settings.worker,
    }
    board = Board(description, progress_bar)
    enable_compilation_cache()
    opened = state.open_run_dir(directory, description, resume)
    with explain_full_disk(directory), opened as is_new, explain_storage_failure(settings.storage):
        try:
            board.start()
            run = Sweep(algo, config, space, scheduler, settings, description, board)
        except BaseException:
            board.close()
            if is_new:
                state.clear(directory)
            raise
        try:
            summary, interrupted = run.run()
        finally:
            run.close()
    return SweepResult(summary, interrupted, directory)


def _check(
    algo: Algorithm, config: Any, space: spaces.Space, scheduler: Scheduler, settings: SweepSettings
) -> None:
    """Raise for bad values, before any work."""
    phase, num_lanes = settings.phase, settings.num_lanes
    if jax.process_count() > 1:
        raise ValueError(
            f"a sweep has a process of its own, but {jax.process_count()} are joined; start a "
            "worker in each, not joined, and let them share a study (storage, study_name)"
        )
    spaces.check(space, config)
    Groups(algo, config, space).check(space)
    if phase.unit not in UNITS:
        raise ValueError(f"phases are counted in {UNITS}, got {phase.unit!r}")
    check_counts(**{"a phase's length": phase.length, "num_lanes": num_lanes})
    if settings.strategy != "auto":
        as_strategy(settings.strategy, num_lanes)
    check_sampler(settings.sampler)
    if settings.keep_best < 0:
        raise ValueError(f"keep_best must be >= 0, got {settings.keep_best}")
    per = settings.keep_best_per
    if per is not None and per not in space:
        raise ValueError(f"keep_best_per = {per!r} is not searched: {sorted(space)}")
