"""Checks of explorers against their contract, for authors of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.tuning.explorers import Explorer, Generation
from jaxrl.tuning.schedulers import ledger as ledgers
from jaxrl.tuning.schedulers.check import (
    UNTRACEABLE,
    explain_tracing,
    raise_for,
    random_scores,
    wrong_arrays,
    wrong_judge,
    wrong_members,
)
from jaxrl.tuning.schedulers.contract import MEMBERS, Status
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.spaces.distributions import contains
from jaxrl.types import Array


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
    spaces.check_numeric(space)
    space = spaces.unconditional(space)
    raise_for(explorer, "explorers", wrong_members(explorer, (*MEMBERS, "evolve")))
    raise_for(explorer, "explorers", wrong_judge(explorer))
    raise_for(explorer, "explorers", _check_explorer_stops_none(explorer))
    raise_for(explorer, "explorers", _check_program(explorer, space, seed))
    raise_for(explorer, "explorers", _check_evolution(explorer, space, seed))


def _check_explorer_stops_none(explorer: Explorer) -> Iterator[str]:
    """Yield problems of an explorer's status after a phase of all trials."""
    if explorer.pauses:
        yield "pauses must be False: an explorer's trials train side by side"
    ledger = ledgers.start(explorer)
    ledger = ledger._replace(status=jnp.full_like(ledger.status, Status.RUNNING))
    for trial, score in enumerate([np.nan, -np.inf, *range(explorer.num_trials - 2)]):
        if trial < explorer.num_trials:
            ledger = ledgers.report(explorer, ledger, trial, np.float32(score))
    expected = Status.RUNNING if explorer.num_phases > 1 else Status.COMPLETED
    if (ledger.status != expected).any():
        yield "judge must return ledger.status: an explorer stops no trial"


def _check_program(explorer: Explorer, space: spaces.PlainSpace, seed: int) -> Iterator[str]:
    """Yield problems of the program and the shapes of `evolve`, without running it."""
    values, parents = _start(explorer, space, seed)
    scores = np.full(parents.shape, np.nan, np.float32)
    arguments = (jax.random.key(seed), np.int32(0), scores, values, parents)
    try:
        generation = jax.eval_shape(_evolution(explorer, space), *arguments)
    except UNTRACEABLE as error:
        yield explain_tracing("evolve", error)
        return
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
                problems = [*_wrong_generation(found, now, scores[:, phase], space)]
                yield from (f"{way}{x}, after phase {phase} with {kind} scores" for x in problems)
                if problems:  # the same would follow under vmap, and after other phases
                    return
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
