"""The finals of a sweep: a sweep of its own, in `finals/`, of the best settings with new seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.files.json_values import score_to_json, values_from_json
from jaxrl.tuning.explorers import Explorer, Generation
from jaxrl.tuning.finals import Finals, mean_interval
from jaxrl.tuning.ranking import Trial, late_objectives, late_score, schedule_of
from jaxrl.tuning.schedulers.contract import Scheduler
from jaxrl.tuning.schedulers.random_search import RandomSearch
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.studies.events import log_name
from jaxrl.tuning.sweeps import sweep_file
from jaxrl.tuning.sweeps.settings import SweepSettings
from jaxrl.tuning.trial_start import TrialSource, trial_key
from jaxrl.types import Array

FOLDER = "finals"


def choose_finalists(trials: Sequence[Trial], finals: Finals) -> list[Trial]:
    """Return the trials with the best `late_score`, without those that have no finite one."""
    scores = {trial["trial"]: late_score(trials, trial) for trial in trials}
    scored = [trial for trial in trials if np.isfinite(scores[trial["trial"]])]
    return sorted(scored, key=lambda trial: (-scores[trial["trial"]], trial["trial"]))[: finals.top]


def settings_of(settings: SweepSettings) -> SweepSettings:
    """Return the settings of a sweep's finals."""
    return settings._replace(
        run_dir=settings.run_dir / FOLDER,
        study_name=f"{settings.study_name}-{FOLDER}",
        sampler="random",
        keep_best_per=None,
        max_steps=math.inf,
        max_seconds=math.inf,
    )


@dataclass(frozen=True)
class FinalRuns(RandomSearch):
    """The scheduler of a sweep's finals, which stops none; the runs of a setting follow each other.

    Its fields are part of what resumed finals, and workers that share them, have in common.
    """

    finalists: tuple[int, ...] = ()
    """The trials whose settings train again."""


@dataclass(frozen=True)
class ScheduledRuns(FinalRuns):
    """The scheduler of the finals of an explorer: each run follows its finalist's schedule.

    It is an explorer itself, which copies no agent.
    """

    schedules: tuple[tuple[tuple[float, ...], ...], ...] = ()
    """The values of each finalist in each phase, in the order of their names."""

    def evolve(
        self,
        key: Array,
        phase: Array,
        scores: Array,
        values: dict[str, Array],
        parents: Array,
        space: spaces.PlainSpace,
    ) -> Generation:
        """Return the values of the next phase; see `Explorer.evolve`."""
        runs = jnp.arange(self.num_trials, dtype=jnp.int32)
        finalist = runs // (self.num_trials // len(self.finalists))
        following = {
            name: jnp.array([[x[place] for x in phases] for phases in self.schedules], old.dtype)
            for place, (name, old) in enumerate(sorted(values.items()))
        }
        return Generation(runs, {name: x[finalist, phase + 1] for name, x in following.items()})


def scheduler_of(
    scheduler: Scheduler, trials: Sequence[Trial], finalists: Sequence[Trial], finals: Finals
) -> FinalRuns:
    """Return the scheduler of a sweep's finals.

    Args:
      trials: all trials of the sweep.
    """
    chosen = tuple(trial["trial"] for trial in finalists)
    number, phases = len(chosen) * finals.repeats, scheduler.num_phases
    if not isinstance(scheduler, Explorer):
        return FinalRuns(number, phases, finalists=chosen)
    schedules = tuple(
        tuple(
            tuple(value for _, value in sorted(step["values"].items()))
            for step in schedule_of(trials, trial, phases)
        )
        for trial in chosen
    )
    return ScheduledRuns(number, phases, finalists=chosen, schedules=schedules)


def check_directory(settings: SweepSettings, scheduler: FinalRuns) -> None:
    """Raise `ValueError` if the directory holds finals of other trials, or with other runs.

    Args:
      settings: of the finals.
    """
    directory = settings.run_dir
    if not (directory / sweep_file.NAME).exists():
        return
    held = sweep_file.read(directory)["scheduler"]
    before, now = (held.get("finalists"), held.get("num_trials")), [*scheduler.finalists]
    if before != (now, scheduler.num_trials):
        what = "it"
        if settings.storage:
            name = settings.study_name
            studies = f"{name!r} and {log_name(name)!r}"
            what += f", and the studies {studies} from its storage (optuna.delete_study),"
        raise ValueError(
            f"{directory} holds {before[1]} runs of the settings of the trials {before[0]}, not "
            f"{scheduler.num_trials} of {now}: remove {what} to train these"
        )


def have_begun(run_dir: Path) -> bool:
    """Return whether a sweep's directory has finals, which begin when its search has ended."""
    return (run_dir / FOLDER / sweep_file.NAME).exists()


def runs_of(run_dir: Path, trial: int) -> range:
    """Return the numbers of a trial's runs in the finals of a sweep's directory; none without them.

    Raises:
      ValueError: if `sweep.json` of the finals is damaged.
    """
    if not have_begun(run_dir):
        return range(0)
    scheduler = sweep_file.read(run_dir / FOLDER)["scheduler"]
    finalists = scheduler.get("finalists", [])
    if trial not in finalists:
        return range(0)
    repeats = scheduler["num_trials"] // len(finalists)
    first = finalists.index(trial) * repeats
    return range(first, first + repeats)


def source_of(
    scheduler: Scheduler,
    trials: Sequence[Trial],
    finalists: Sequence[Trial],
    finals: Finals,
    seed: int,
) -> TrialSource:
    """Return the first values of the finals' runs, and keys that no trial of the search had.

    Args:
      trials: all trials of the sweep.
    """
    key, first = jax.random.key(seed), {trial["trial"]: trial["values"] for trial in finalists}
    if isinstance(scheduler, Explorer):
        for trial in first:
            first[trial] = schedule_of(trials, trial, scheduler.num_phases)[0]["values"]
    values = [first[trial["trial"]] for trial in finalists]
    return TrialSource(
        values=lambda run: values_from_json(dict(values[run // finals.repeats])),
        key=lambda run: trial_key(key, scheduler.num_trials + run),
    )


def summarize_finals(
    trials: Sequence[Trial], finalists: Sequence[Trial], runs: Iterable[Trial], finals: Finals
) -> list[dict[str, Any]]:
    """Return a row for each setting, as `sweep.json` has it, the best first.

    A run scores the mean of its last two phases, a setting the mean of its runs, with its 95%
    interval. So it is with each of several objectives, but without intervals. `search` is the
    `late_score` in the search, by which the setting was chosen.

    Args:
      trials: all trials of the sweep.
    """
    runs = list(runs)
    scores = {run["trial"]: late_score(runs, run) for run in runs}
    objectives = {run["trial"]: late_objectives(runs, run) for run in runs if "objectives" in run}
    rows = []
    for place, trial in enumerate(finalists):
        first = place * finals.repeats
        places = range(first, first + finals.repeats)
        own = [scores.get(run, -np.inf) for run in places]
        row = {
            "trial": trial["trial"],
            "values": trial["values"],
            "scores": own,
            "search": score_to_json(np.float64(late_score(trials, trial))),
        }
        if all(run in objectives for run in places):
            means = np.mean([objectives[run] for run in places], axis=0)
            row["objectives"] = [score_to_json(mean) for mean in means]
        rows.append(row)
    rows.sort(key=lambda row: -np.mean(row["scores"]))
    return [
        row
        | {
            "scores": [score_to_json(np.float64(score)) for score in row["scores"]],
            "score": score_to_json(np.mean(row["scores"])),
            "interval": [
                score_to_json(np.float64(end)) for end in mean_interval(np.array(row["scores"]))
            ],
        }
        for row in rows
    ]
