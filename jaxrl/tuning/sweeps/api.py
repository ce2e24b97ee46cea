"""`sweep`: a hyperparameter search driven from the host, with a study, live logs and checkpoints.

`jaxrl.tuning.search` is one program and searches traced fields only. A sweep searches any field,
keeps every trial in an Optuna study that several workers may share, shows its progress, keeps the
best agents, and resumes after a kill. Both take their decisions by the same functions; with the
samplers "random" and "sobol" they also run the same trials.

If only traced fields are searched, all lanes train one program, compiled once. If static fields are
searched, each lane runs whichever program its trial needs; a program is compiled for each
combination of static values on each device. The lanes are dealt to the devices, and no device waits
for another except for checkpoints. So the order in which trials report depends on the devices'
speed, unless all lanes are on one device (`strategy="vmap"`).
"""

from __future__ import annotations

import math
import platform
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl import checks
from jaxrl.checks import BOUND, DELAY, NOT_NEGATIVE
from jaxrl.training.compilation import enable_compilation_cache
from jaxrl.training.population import Strategy
from jaxrl.training.run_dir.directory import directory_lock, explain_full_disk
from jaxrl.tuning.finals import Finals
from jaxrl.tuning.objectives import (
    Objectives,
    check_evaluation,
    check_objective,
    mean_return,
)
from jaxrl.tuning.ranking import winner, winning_schedule
from jaxrl.tuning.schedulers.contract import Scheduler, require_scheduler
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.studies.damage import explain_storage_failure
from jaxrl.tuning.studies.storage import OtherSearchError
from jaxrl.tuning.studies.trial_sampler import SAMPLERS
from jaxrl.tuning.studies.whole_study import read_study
from jaxrl.tuning.sweeps import final_runs, sweep_file
from jaxrl.tuning.sweeps.display import Display
from jaxrl.tuning.sweeps.loop import SweepLoop
from jaxrl.tuning.sweeps.settings import (
    Phase,
    SweepSettings,
    check_finals,
    check_phase,
    check_settings,
)
from jaxrl.tuning.trial_start import TrialSource
from jaxrl.types import Algorithm, check_agent


class SweepResult(NamedTuple):
    """The outcome of a sweep."""

    summary: dict[str, Any]
    """What `sweep.json` holds: trials with values, scores and status, finals, spans, occupancy."""
    interrupted: bool
    """Whether Ctrl-C or SIGTERM stopped the sweep before its end."""
    run_dir: Path

    @property
    def best(self) -> dict[str, Any] | None:
        """The winner of the finals; without them the trial with the best score of all phases.

        It has `trial` and `values`. It is None if no trial has a finite score; after finals, if no
        setting has finite scores in all its runs. If an explorer changed the trials, `values` are
        those with which the trial began, and `schedule` has, for each phase that led to the winner,
        the `trial` that trained it and its `values`.
        """
        best, schedule = winner(self.summary), winning_schedule(self.summary)
        if best is None:
            return None
        return dict(best) | ({"schedule": schedule} if schedule else {})


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
    objective: Objectives = mean_return,
    evaluation_episodes: int = 0,
    seeds_per_trial: int = 1,
    finals: Finals | None = None,
    resume: bool = False,
    keep_best: int = 3,
    keep_best_per: str | None = None,
    worker: str | None = None,
    agents_dir: str | Path | None = None,
    heartbeat_seconds: int = 60,
    checkpoint_seconds: float = 30.0,
    chunk_seconds: float = 2.0,
    max_steps: float = math.inf,
    max_seconds: float = math.inf,
    progress_bar: bool = True,
) -> SweepResult:
    """Search for the config that scores best; by default a score is a phase's mean return.

    Ctrl-C and SIGTERM stop after the current chunk, with a checkpoint. A resumed sweep ends with
    the same trials, scores and decisions as an uninterrupted one if its environments run on the
    device, no other worker interferes, and lanes of static fields share one device.

    Args:
      config: gives the values that are not searched.
      scheduler: an `Explorer` such as `PBT` needs a lane for each trial, and no other worker. As
        in `search`, copies take parameters, optimizer and environments on the device; environments
        on the host stay in their lanes, and begin new episodes. A phase of episodes is over once
        each trial has ended as many.
      num_lanes: how many trials train at the same time.
      phase: how long a trial trains between two reports of its score.
      run_dir: receives `sweep.json`, `metrics.jsonl`, `checkpoints/`, the best agents under
        `best/`, and `study.db` unless `storage` is given.
      sampler: "random" or "sobol" (from `seed` alone), or "tpe", "cmaes" and "gp", which learn
        from the trials that have ended; "gp" only from those that no scheduler stopped.
      storage, study_name: workers with the same ones share the trials, and must have the same
        seed, sampler and other settings that results depend on. Without a name the study has that
        of the folder `run_dir`, in which workers differ. `storage` is a database URL
        (`sqlite:///study.db`, `postgresql://...`), or `journal:///study.log` for one worker at a
        time. A resumed sweep remembers its storage, except for secrets, which are written to no
        file: the password and the URL's query fields, but for harmless ones such as `sslmode`.
      strategy: one of `jaxrl.population`, or "auto" for the fastest by a short measurement, which
        a sweep that is resumed on the same hardware does not repeat. Where static fields are
        searched, only its devices matter: one ("vmap", "map"), as many as divide the lanes evenly
        ("shard-..."), or all ("auto").
      objective: gives the score of a phase (`jaxrl.tuning.objectives`). Its metrics `[K, 1]` are
        those of the whole phase: sums or, of losses and the like, means over updates. It may be a
        dictionary of several by name, of which the first one compares trials.
      evaluation_episodes: score that many episodes of each agent's greedy policy, played after the
        phase, instead of its training episodes. Their steps do not count as training.
      seeds_per_trial: agents of a trial, K, which train side by side with different seeds. The
        first of them is the one that is kept.
      finals: once no trial is left, train the best settings again with new seeds, by a sweep in
        `run_dir/finals`, and choose the winner by these runs. Workers share the finals, too. Their
        steps do not count for `max_steps`, nor their time for `max_seconds`.
      resume: continue the sweep in `run_dir`, if there is one.
      keep_best: how many of the best agents are kept, for `jaxrl.load_policy`.
      keep_best_per: a hyperparameter; the best agent of each of its values is kept too.
      worker: this process's name in the study, the same after a restart; None makes one of the host
        and the run directory.
      agents_dir: folder in which all workers, on whatever machine, keep the agents of paused
        trials; used if the scheduler pauses trials. None takes one beside a database that is a
        file; workers that share a database server need to name one.
      heartbeat_seconds: the same for all workers. One that recorded no heartbeat for twice as long
        is taken for dead, and its trials return to the queue.
      checkpoint_seconds: the least time between two checkpoints.
      chunk_seconds: about how long lanes train before the sweep looks at them again.
      max_steps, max_seconds: environment steps of this worker's trials, and seconds, after which it
        stops its trials for good and begins no other. The lanes finish their chunk, and finals
        follow. A sweep that is resumed with a higher cap goes on with new trials only. Rungs of
        `SuccessiveHalving` and `HyperBand` do not wait for trials that a cap has ended.

    Raises:
      ValueError: for bad values, or a directory or study of another search.
      ImportError: without Optuna.
      OSError: if files or the study cannot be written (a full disk).
    """
    check_agent(algo, config)
    require_scheduler(scheduler)
    directory = checks.path("run_dir", run_dir)
    resume, progress_bar = checks.flag("resume", resume), checks.flag("progress_bar", progress_bar)
    # A directory that was moved, or is resumed on another machine, continues with its own study.
    stored = sweep_file.read(directory) if resume and (directory / sweep_file.NAME).exists() else {}
    settings = SweepSettings(
        num_lanes=checks.integer("num_lanes", num_lanes),
        phase=check_phase(phase),
        run_dir=directory,
        seed=checks.seed(seed),
        sampler=checks.choice("sampler", sampler, SAMPLERS),
        storage=checks.optional(checks.text, "storage", storage) or stored.get("storage"),
        study_name=checks.optional(checks.text, "study_name", study_name)
        or stored.get("study")
        or directory.resolve().name,
        strategy=strategy,
        keep_best=checks.integer("keep_best", keep_best, 0),
        keep_best_per=checks.optional(checks.text, "keep_best_per", keep_best_per),
        worker=checks.optional(checks.text, "worker", worker)
        or stored.get("worker")
        or f"{platform.node()}:{directory.resolve()}",
        agents_dir=checks.optional(checks.path, "agents_dir", agents_dir)
        or (Path(stored["agents_dir"]) if stored.get("agents_dir") else None),
        heartbeat_seconds=checks.integer("heartbeat_seconds", heartbeat_seconds),
        checkpoint_seconds=checks.number("checkpoint_seconds", checkpoint_seconds, DELAY),
        chunk_seconds=checks.number("chunk_seconds", chunk_seconds, NOT_NEGATIVE),
        max_steps=checks.number("max_steps", max_steps, BOUND),
        max_seconds=checks.number("max_seconds", max_seconds, BOUND),
        objective=check_objective(objective),
        evaluation_episodes=check_evaluation(algo, evaluation_episodes),
        seeds_per_trial=checks.integer("seeds_per_trial", seeds_per_trial),
    )
    check_settings(algo, config, space, scheduler, settings)
    if finals is not None:
        check_finals(finals, scheduler, settings, algo.env.num_envs * algo.num_steps(config))
    result = _sweep(algo, config, space, scheduler, settings, resume, progress_bar)
    if result.interrupted or finals is None:
        return result
    return _train_finals(algo, config, space, scheduler, settings, finals, result, progress_bar)


def _train_finals(
    algo: Algorithm,
    config: Any,
    space: spaces.Space,
    scheduler: Scheduler,
    settings: SweepSettings,
    finals: Finals,
    result: SweepResult,
    progress_bar: bool,
) -> SweepResult:
    """Train the finals of a sweep that has ended, or continue them; return its result with them."""
    trials = _all_trials(result, settings)
    chosen = final_runs.choose_finalists(trials, finals)
    if not chosen:
        return result
    own = final_runs.settings_of(settings)
    source = final_runs.source_of(scheduler, trials, chosen, finals, settings.seed)
    rule = final_runs.scheduler_of(scheduler, trials, chosen, finals)
    final_runs.check_directory(own, rule)
    try:
        ended = _sweep(algo, config, space, rule, own, True, progress_bar, source)
    except OtherSearchError as error:
        raise ValueError(
            f"{error}\nThese are the finals, which all workers share: resume with those of the "
            "others (--final-trials, --final-runs) and the same study"
        ) from error
    if ended.interrupted:
        return result._replace(interrupted=True)
    runs = _all_trials(ended, own)
    rows = final_runs.summarize_finals(trials, chosen, runs, finals)
    summary = result.summary | {"finals": rows}
    with explain_full_disk(result.run_dir), directory_lock(result.run_dir):
        sweep_file.write(result.run_dir, summary)
    return result._replace(summary=summary)


def _all_trials(result: SweepResult, settings: SweepSettings) -> list[dict[str, Any]]:
    """Return the trials of all workers."""
    if result.summary["elsewhere"]:
        return read_study(settings.storage_url, settings.study_name)["trials"]
    return result.summary["trials"]


def _sweep(
    algo: Algorithm,
    config: Any,
    space: spaces.Space,
    scheduler: Scheduler,
    settings: SweepSettings,
    resume: bool,
    progress_bar: bool,
    source: TrialSource | None = None,
) -> SweepResult:
    """Open the run directory, and run the loop of a sweep with checked settings in it."""
    directory = settings.run_dir
    description = sweep_file.describe(algo, config, space, scheduler, settings)
    display = Display(description, progress_bar)
    enable_compilation_cache()
    opened = sweep_file.open_directory(directory, description, resume)
    failures = explain_storage_failure(settings.storage_url, settings.study_name)
    with explain_full_disk(directory), opened as is_new, failures:
        search = sweep_file.shared_settings(description)
        try:
            display.start()
            loop = SweepLoop(
                algo, config, space, scheduler, settings, description, search, display, source
            )
        except BaseException:
            display.close()
            if is_new:
                sweep_file.clear(directory)
            raise
        try:
            summary, interrupted = loop.run()
        finally:
            loop.close()
    return SweepResult(summary, interrupted, directory)
