"""Checks of schedulers and explorers against their contracts, for authors of their own.

`jaxrl.tuning.samplers.check` checks samplers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.tuning import schedulers
from jaxrl.tuning.explorers import Explorer, Generation
from jaxrl.tuning.schedulers import MEMBERS, Ledger, Scheduler, Status
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.spaces.distributions import Choice, contains
from jaxrl.types import Array


def check_scheduler(scheduler: Scheduler, seed: int = 0) -> None:
    """Check the decisions of a scheduler in searches with random scores.

    Small numbers of trials and phases suffice, and cost seconds.

    Args:
      seed: of the scores, of which some are NaN, -inf or equal.

    Raises:
      ValueError: with the violations of the contract (`Scheduler`) that were found.
    """
    seed = checks.seed(seed)
    raise_for(scheduler, "schedulers", _check_members(scheduler, MEMBERS))
    raise_for(scheduler, "schedulers", _check_judge(scheduler))
    raise_for(scheduler, "schedulers", _check_search(scheduler, seed))


def check_explorer(explorer: Explorer, space: spaces.Space, seed: int = 0) -> None:
    """Check the generations of an explorer in searches with random scores.

    Small numbers of trials and phases suffice, and cost seconds.

    Args:
      space: what a search would explore; a distribution of each kind checks the most.
      seed: of the values, the explorer's keys, and the scores: usual ones, huge ones, equal ones,
        and ones of which some or all are missing.

    Raises:
      ValueError: with the violations of the contract (`Explorer`) that were found.
    """
    seed = checks.seed(seed)
    check_numeric_space(space)
    space = spaces.unconditional(space)
    raise_for(explorer, "explorers", _check_members(explorer, (*MEMBERS, "evolve")))
    raise_for(explorer, "explorers", _check_judge(explorer))
    raise_for(explorer, "explorers", _check_explorer_stops_none(explorer))
    raise_for(explorer, "explorers", _check_program(explorer, space, seed))
    raise_for(explorer, "explorers", _check_evolution(explorer, space, seed))


def raise_for(checked: Any, kind: str, problems: Iterable[str]) -> None:
    """Raise `ValueError` if there are problems; each is named once."""
    if found := list(dict.fromkeys(problems)):
        text = "\n  - ".join(found)
        raise ValueError(f"{checked!r} breaks the contract of {kind}:\n  - {text}")


def _check_members(scheduler: Any, members: tuple[str, ...]) -> Iterator[str]:
    """Yield problems of what a scheduler has."""
    if isinstance(scheduler, type):
        yield "it is a class: make an instance"
        return
    missing = [name for name in members if not hasattr(scheduler, name)]
    if missing:
        yield f"it has no {', '.join(missing)}"
        return
    if not dataclasses.is_dataclass(scheduler):
        yield "it is no dataclass, by whose fields sweeps know it: make it a frozen dataclass"
    try:
        hash(scheduler)
    except TypeError:
        yield "it cannot be hashed, which jit needs: make it a frozen dataclass of plain values"
    for name in ("num_trials", "num_phases"):
        value = getattr(scheduler, name)
        if type(value) is not int or value < 1:
            yield f"{name} must be an integer >= 1, is {value!r}"
    if type(scheduler.pauses) is not bool:
        yield f"pauses must be True or False, is {scheduler.pauses!r}"


def _check_judge(scheduler: Scheduler) -> Iterator[str]:
    """Yield problems of what `judge` returns, without running it."""
    ledger = schedulers.start(scheduler)
    status = jax.eval_shape(scheduler.judge, ledger, jnp.int32(0))
    yield from wrong_arrays("judge", {"the status": (status, ledger.status)})


def _check_search(scheduler: Scheduler, seed: int) -> Iterator[str]:
    """Yield problems of all decisions in searches on one lane, on some, and on one per trial."""
    generator = np.random.default_rng(seed)
    shape = (scheduler.num_trials, scheduler.num_phases)
    judge = jax.jit(jax.vmap(scheduler.judge, (0, None)))
    for num_lanes in sorted({1, (shape[0] + 1) // 2, shape[0]}):
        scores = generator.normal(size=shape).astype(np.float32)
        scores[generator.random(shape) < 0.2] = 0.5
        scores[generator.random(shape) < 0.1] = np.nan
        scores[generator.random(shape) < 0.1] = -np.inf
        ledger = schedulers.start(scheduler)
        lanes: list[int] = []
        while True:
            while len(lanes) < num_lanes:
                ledger, assigned = schedulers.assign(ledger)
                if assigned < 0:
                    break
                lanes.append(int(assigned))
            if not lanes:
                break
            trial = lanes.pop(int(generator.integers(len(lanes))))
            if scheduler.pauses and generator.random() < 0.05:  # a cap ends the trial
                status = ledger.status.at[trial].set(Status.STOPPED)
                before = ledger._replace(status=status)
                ledger = schedulers.stop(scheduler, ledger, np.int32(trial))
                if problems := list(_wrong_decisions(scheduler, judge, before, ledger, trial)):
                    yield from problems
                    return
                continue
            phase = int(ledger.reported[trial])
            before, score = ledger.status, scores[trial, phase]
            ledger = schedulers.report(scheduler, ledger, np.int32(trial), score)
            reported = ledger._replace(status=before)
            if problems := list(_wrong_decisions(scheduler, judge, reported, ledger, trial)):
                yield from problems
                return  # such a search may never end
            if ledger.status[trial] == Status.RUNNING:
                lanes.append(trial)


def _wrong_decisions(
    scheduler: Scheduler, judge: Callable[..., Array], ledger: Ledger, after: Ledger, trial: int
) -> Iterator[str]:
    """Yield problems of the status that is judged after `trial` has reported, or was stopped."""
    old, status = np.asarray(ledger.status), np.asarray(after.status)
    both = jax.tree.map(lambda x: np.stack([x, x]), ledger)
    again = np.asarray(judge(both, np.int32(trial)))
    others = np.arange(len(status)) != trial
    # The status of a trial that has reported all phases, or was stopped, is not judged.
    is_set = (ledger.reported[trial] >= scheduler.num_phases) | (old[trial] >= Status.STOPPED)
    if ((again != status) & (others | ~is_set)).any():
        yield "judge decides otherwise the next time, or under vmap"
    if not np.isin(status, list(Status)).all():
        yield f"judge returned {sorted(set(status.tolist()))}, of which some are no Status"
    if (others & (old >= Status.STOPPED) & (status != old)).any():
        yield "a trial that has ended changes its status"
    if ((status == Status.RUNNING) & (old != Status.RUNNING)).any():
        yield "judge sets a trial RUNNING that has no lane: set it READY"
    if ((status == Status.WAITING) & (old != Status.WAITING)).any():
        yield "judge sets a trial WAITING that has begun: set it READY"
    if ((others | ~is_set) & (status == Status.COMPLETED) & (old != Status.COMPLETED)).any():
        yield "judge sets a trial COMPLETED that has not reported all phases: set it STOPPED"
    if not scheduler.pauses and np.isin(status, [Status.PAUSED, Status.READY]).any():
        yield "judge pauses a trial although `pauses` is False, so no agents are kept"


def check_numeric_space(space: Any) -> None:
    """Raise `ValueError` unless a space has distributions, and of numbers only."""
    spaces.check_distributions(space)
    for name, distribution in spaces.unconditional(space).items():
        if isinstance(distribution, Choice) and not distribution.are_numbers:
            raise ValueError(f"space[{name!r}] must have numbers only, got {distribution}")
    if not space:
        raise checks.refuse("space", "a dictionary with at least one distribution", space)


def _check_explorer_stops_none(explorer: Explorer) -> Iterator[str]:
    """Yield problems of an explorer's status after a phase of all trials."""
    if explorer.pauses:
        yield "pauses must be False: an explorer's trials train side by side"
    ledger = schedulers.start(explorer)
    ledger = ledger._replace(status=jnp.full_like(ledger.status, Status.RUNNING))
    for trial, score in enumerate([np.nan, -np.inf, *range(explorer.num_trials - 2)]):
        if trial < explorer.num_trials:
            ledger = schedulers.report(explorer, ledger, trial, np.float32(score))
    expected = Status.RUNNING if explorer.num_phases > 1 else Status.COMPLETED
    if (ledger.status != expected).any():
        yield "judge must return ledger.status: an explorer stops no trial"


def _check_program(explorer: Explorer, space: spaces.PlainSpace, seed: int) -> Iterator[str]:
    """Yield problems of the program and the shapes of `evolve`, without running it."""
    values, parents = _start(explorer, space, seed)
    scores = np.full(parents.shape, np.nan, np.float32)
    arguments = (jax.random.key(seed), np.int32(0), scores, values, parents)
    generation = jax.eval_shape(_evolution(explorer, space), *arguments)
    if not isinstance(generation, Generation) or set(generation.values) != set(space):
        yield f"evolve must return a Generation with the values {sorted(space)}"
        return
    found = {name: (generation.values[name], x[:, 0]) for name, x in values.items()}
    yield from wrong_arrays("evolve", found | {"parent": (generation.parent, parents[:, 0])})
    texts = {jax.jit(_evolution(explorer, space)).lower(*arguments).as_text() for _ in range(2)}
    if len(texts) > 1:
        yield "evolve differs from call to call: all randomness must come from the key"


def _check_evolution(explorer: Explorer, space: spaces.PlainSpace, seed: int) -> Iterator[str]:
    """Yield problems of generations after each phase of several searches."""
    evolve = _evolution(explorer, space)
    alone, lanes = jax.jit(evolve), jax.jit(jax.vmap(evolve, (0, None, None, None, None)))
    key, column = jax.random.key(seed), np.arange(explorer.num_phases)
    start = _start(explorer, space, seed)
    for kind, scores in random_scores(explorer.num_trials, explorer.num_phases, seed):
        values, parents = jax.tree.map(np.copy, start)
        for phase in column:
            seen = np.where(column <= phase, scores, np.float32(np.nan))
            keys = jax.random.split(jax.random.fold_in(key, phase), 2)
            arguments = (np.int32(phase), seen, values, parents)
            one = jax.tree.map(np.asarray, alone(keys[0], *arguments))
            both = jax.tree.map(np.asarray, lanes(keys, *arguments))
            now = {name: x[:, phase] for name, x in values.items()}
            for way, found in (("", one), ("under vmap, ", jax.tree.map(lambda x: x[0], both))):
                for problem in _wrong_generation(found, now, scores[:, phase], space):
                    yield f"{way}{problem}, after phase {phase} with {kind} scores"
            if not np.array_equal(one.parent, both.parent[0]):
                yield "parent under vmap differs from parent alone"
            for name, x in values.items():
                x[:, phase + 1 :] = one.values[name][:, None]
            parents[:, phase] = one.parent


def _evolution(explorer: Explorer, space: spaces.PlainSpace) -> Callable[..., Generation]:
    """Return `evolve` in a space, as a new function, which jit traces again."""

    def evolve(
        key: Array, phase: Array, scores: Array, values: dict[str, Array], parents: Array
    ) -> Generation:
        return explorer.evolve(key, phase, scores, values, parents, space)

    return evolve


def _start(
    explorer: Explorer, space: spaces.PlainSpace, seed: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return random values and parents `[N, P]` before the first phase."""
    number, num_phases = explorer.num_trials, explorer.num_phases
    keys = jax.random.split(jax.random.key(seed), number)
    drawn = jax.jit(jax.vmap(lambda key: spaces.draw(space, key)))(keys)
    values = {name: np.stack([np.asarray(drawn[name])] * num_phases, 1) for name in space}
    return values, np.stack([np.arange(number, dtype=np.int32)] * num_phases, 1)


def random_scores(number: int, num_phases: int, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names of kinds of scores, and such scores of all trials and phases, `[N, P]`."""
    generator = np.random.default_rng(seed)
    usual = generator.normal(size=(number, num_phases)).astype(np.float32)
    yield "usual", usual
    some, most = usual.copy(), usual.copy()
    for phase in range(num_phases):
        places = generator.permutation(number)[1:]
        most[places, phase] = np.resize((np.nan, -np.inf), number - 1)
        some[places[:2], phase] = most[places[:2], phase]
    yield "some missing", some
    yield "most missing", most
    yield "no", np.full_like(usual, np.nan)
    yield "equal", np.zeros_like(usual)
    yield "huge", usual * np.float32(1e30)


def _wrong_generation(
    generation: Generation, now: dict[str, np.ndarray], scores: np.ndarray, space: spaces.PlainSpace
) -> Iterator[str]:
    """Yield problems of a generation, given the values and scores `[N]` of the phase before."""
    own = np.arange(len(scores))
    parent = np.asarray(generation.parent)
    if ((parent < 0) | (parent >= len(own))).any():
        yield f"parent must be from 0 to {len(own) - 1}, is {parent.tolist()}"
        return
    is_copy = parent != own
    for name, distribution in space.items():
        x = np.asarray(generation.values[name])
        outside = x[~contains(distribution, x)]
        if len(outside):
            yield f"{name} must be within {distribution}, is {outside[0]}"
        if (x != now[name])[~is_copy].any():
            yield f"{name} changes for a trial that keeps its agent"
    has_score = np.isfinite(scores)
    if has_score.any() and (is_copy & ~has_score[parent]).any():
        trial = int(np.flatnonzero(is_copy & ~has_score[parent])[0])
        source = int(parent[trial])
        yield f"trial {trial} continues as trial {source}, whose score is {scores[source]}"


def wrong_arrays(where: str, found: dict[str, tuple[Any, Any]]) -> Iterator[str]:
    """Yield arrays whose shape or dtype is not that of the wanted ones, by name."""
    for name, (x, wanted) in found.items():
        if (x.shape, x.dtype) != (wanted.shape, wanted.dtype):
            is_, must = (f"{y.dtype.name}{list(y.shape)}" for y in (x, wanted))
            yield f"{where}: {name} must be {must}, is {is_}"
