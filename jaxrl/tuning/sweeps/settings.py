"""The settings of a sweep, and their checks before any work."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl import checks
from jaxrl.files.urls import file_url, storage_file
from jaxrl.training.population import STRATEGIES, Strategy, as_strategy
from jaxrl.tuning.explorers import Explorer, check_room
from jaxrl.tuning.finals import Finals
from jaxrl.tuning.objectives import Objectives, check_score
from jaxrl.tuning.schedulers.contract import Scheduler
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.spaces.distributions import LogUniform, Uniform
from jaxrl.tuning.static_programs import StaticPrograms
from jaxrl.tuning.studies.paused_agents import default_folder
from jaxrl.tuning.studies.trial_sampler import require_sampler
from jaxrl.tuning.sweeps.state import PhaseRun
from jaxrl.types import Algorithm

UNITS = ("updates", "steps", "episodes")
EPISODE_CHECK = 16
"""After this many updates, the episodes of a phase are counted."""


class Phase(NamedTuple):
    """The length of training between two reports of a trial's score."""

    length: int
    unit: str = "updates"
    """"updates", environment "steps" (rounded up to whole updates), or "episodes" that ended, which
    are counted after every 16 updates; each agent of a trial trains for at least so long, unless it
    diverges."""

    def num_updates(self, steps_per_update: int) -> int:
        """Return the length in updates, of a phase that is not counted in episodes."""
        return math.ceil(self.length / steps_per_update) if self.unit == "steps" else self.length

    def num_steps(self, steps_per_update: int) -> float:
        """Return the length in environment steps; inf if it is counted in episodes."""
        in_episodes = self.unit == "episodes"
        return math.inf if in_episodes else self.num_updates(steps_per_update) * steps_per_update

    def updates_left(self, run: PhaseRun, steps_per_update: int) -> int:
        """Return after how many updates the phase may be over."""
        if self.unit == "episodes":
            return EPISODE_CHECK
        return self.num_updates(steps_per_update) - run.updates

    def is_over(self, run: PhaseRun, steps_per_update: int) -> bool:
        """Return whether the run has trained for the whole phase."""
        if self.unit == "episodes":
            return run.episodes >= self.length
        return run.updates >= self.num_updates(steps_per_update)


def check_phase(phase: Any) -> Phase:
    """Return a phase with plain values; raise `ValueError` for bad ones."""
    checks.instance("phase", phase, Phase, "a jaxrl.tuning.Phase(length, unit)")
    length = checks.integer("Phase.length", phase.length, whole_floats=True)
    return Phase(length, checks.choice("Phase.unit", phase.unit, UNITS))


class SweepSettings(NamedTuple):
    """The settings of a sweep; the fields are arguments of `jaxrl.tuning.sweep`."""

    num_lanes: int
    phase: Phase
    run_dir: Path
    seed: int
    sampler: str
    storage: str | None
    study_name: str
    strategy: str | Strategy
    keep_best: int
    keep_best_per: str | None
    worker: str
    agents_dir: Path | None
    heartbeat_seconds: int
    checkpoint_seconds: float
    chunk_seconds: float
    max_steps: float
    max_seconds: float
    objective: Objectives
    evaluation_episodes: int
    seeds_per_trial: int

    @property
    def storage_url(self) -> str:
        """The URL of the study's storage."""
        return storage_url(self.run_dir, self.storage)

    @property
    def agents_folder(self) -> Path:
        """The folder in which all workers keep the agents of paused trials."""
        return self.agents_dir or default_folder(self.storage_url, self.run_dir)


LAMBDA = "<lambda>"
"""The name of functions that have none."""


def storage_url(run_dir: Path, storage: str | None) -> str:
    """Return the URL of a sweep's storage, by default a database in its directory."""
    return storage or file_url(run_dir / "study.db")


def check_settings(
    algo: Algorithm, config: Any, space: spaces.Space, scheduler: Scheduler, settings: SweepSettings
) -> None:
    """Raise for bad values, before any work."""
    if jax.process_count() > 1:
        raise ValueError(
            f"a sweep needs a process of its own, but {jax.process_count()} are joined; start a "
            "worker in each, not joined, and let them share a study (storage, study_name)"
        )
    spaces.check(space, config)
    if isinstance(scheduler, Explorer):
        _check_explorer(scheduler, config, space, settings)
    programs = StaticPrograms(algo, config, space)
    programs.check(space)
    if isinstance(settings.strategy, str):
        checks.choice("strategy", settings.strategy, ("auto", *STRATEGIES))
    if not isinstance(settings.strategy, str) or settings.strategy != "auto":
        num_lanes = min(settings.num_lanes, scheduler.num_trials)
        as_strategy(settings.strategy, num_lanes * settings.seeds_per_trial)
    require_sampler(settings.sampler, space)
    if callable(settings.objective) and getattr(settings.objective, "__name__", LAMBDA) == LAMBDA:
        named = "a function with a name, which sweep.json records (def score(metrics): ...)"
        raise checks.refuse("objective", named, settings.objective)
    tried, program = programs.first(space)  # the config itself may be one that its program refuses
    episodes, seeds = settings.evaluation_episodes, settings.seeds_per_trial
    check_score(settings.objective, program.algo, tried, episodes, seeds)
    if settings.keep_best_per is not None:
        plain = spaces.unconditional(space).items()
        few = (name for name, part in plain if not isinstance(part, Uniform | LogUniform))
        checks.choice("keep_best_per", settings.keep_best_per, tuple(sorted(few)))
    storage_file(settings.storage_url)  # raises an error for what is no URL


def _check_explorer(
    explorer: Explorer, config: Any, space: spaces.Space, settings: SweepSettings
) -> None:
    """Raise `ValueError` for what an explorer cannot have in a sweep."""
    name, caps = type(explorer).__name__, ("max_steps", "max_seconds")
    check_room(explorer, settings.num_lanes, **{cap: getattr(settings, cap) for cap in caps})
    if static := spaces.static_names(space, type(config)):
        raise ValueError(
            f"{name} changes values while agents train, but {static} are static fields, which "
            "change the program: leave them out of the space"
        )
    if conditional := [field for field, part in space.items() if isinstance(part, spaces.When)]:
        raise ValueError(
            f"{name} changes the values of all trials, but {conditional} have none in some: search "
            "them without When, or by another scheduler"
        )
    if settings.sampler not in ("random", "sobol"):
        raise ValueError(
            f"sampler must be 'random' or 'sobol', got {settings.sampler!r}: the trials of {name} "
            "begin together, so no sampler can learn from those that have ended"
        )
    if settings.keep_best_per is not None:
        raise ValueError(
            f"keep_best_per must be left out, got {settings.keep_best_per!r}: {name} changes the "
            "values of trials, so no agent belongs to one value"
        )


def whole_trials(
    max_steps: float, phase: Phase, seeds_per_trial: int, num_phases: int, steps_per_update: int
) -> float:
    """Return how many whole trials a cap of steps allows; inf if phases are counted in episodes."""
    agents = checks.integer("seeds_per_trial", seeds_per_trial)
    max_steps = checks.number("max_steps", max_steps, checks.BOUND)
    steps = phase.num_steps(steps_per_update)
    return math.inf if math.isinf(steps) else max_steps / (steps * agents * num_phases)


def check_finals(
    finals: Any, scheduler: Scheduler, settings: SweepSettings, steps_per_update: int
) -> None:
    """Raise `ValueError` for finals that cannot follow the sweep."""
    checks.instance("finals", finals, Finals, "jaxrl.tuning.Finals(top, repeats) or None")
    is_capped = min(settings.max_steps, settings.max_seconds) < math.inf
    if is_capped and settings.storage is not None:
        raise ValueError(
            "finals compare all trials of a study, but max_steps and max_seconds end those of "
            f"one of its workers: leave out {finals}, the cap, or the storage"
        )
    allowed = whole_trials(
        settings.max_steps, settings.phase, settings.seeds_per_trial, scheduler.num_phases,
        steps_per_update,
    )  # fmt: skip
    finals.check(scheduler.num_trials, allowed)
    runs = finals.top * finals.repeats
    if isinstance(scheduler, Explorer) and runs > settings.num_lanes:
        raise ValueError(
            f"num_lanes must be at least {runs}, got {settings.num_lanes}: the {finals.top} * "
            f"{finals.repeats} finals of {type(scheduler).__name__} train side by side"
        )
