"""A check of samplers against their contract, for authors of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.tuning.explorers import AdaptiveSampler, Sampler
from jaxrl.tuning.schedulers.check import raise_for, random_scores, wrong_arrays
from jaxrl.tuning.schedulers.contract import Ledger, Status
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.spaces.distributions import contains
from jaxrl.types import Array

NUM_PHASES = 3
KEY_ONLY = "all randomness must come from the key"
Values = dict[str, Array]


def check_sampler(
    sampler: Sampler, space: spaces.Space, num_trials: int = 12, seed: int = 0
) -> None:
    """Check the settings that a sampler gives to trials, in searches with random scores.

    Args:
      space: what a search would search; a distribution of each kind checks the most.
      num_trials: trials of each search, of which a quarter begin together. A sampler that keeps
        its plan for the first trials needs more.
      seed: of the sampler's keys, and the scores: usual ones, huge ones, equal ones, and ones of
        which some or all are missing.

    Raises:
      ValueError: with the violations of the contract (`Sampler`, `AdaptiveSampler`) that were
        found.
    """
    num_trials, seed = checks.integer("num_trials", num_trials, 2), checks.seed(seed)
    spaces.check_numeric(space)
    key = jax.random.key(seed)
    drawn = _draw(space, num_trials, key)
    raise_for(sampler, "samplers", _check_members(sampler))

    def plan() -> Callable[[Array], Values]:
        return lambda key: sampler.plan(key, num_trials, space)

    raise_for(sampler, "samplers", _check_program("plan", plan, (key,), drawn))
    raise_for(sampler, "samplers", _check_plans(plan(), space, key))
    if isinstance(sampler, AdaptiveSampler):
        planned = jax.tree.map(np.array, jax.jit(plan())(key))
        _check_adaptive(sampler, planned, space, seed)


def _check_adaptive(
    sampler: AdaptiveSampler, planned: dict[str, np.ndarray], space: spaces.Space, seed: int
) -> None:
    """Raise `ValueError` with the violations of `AdaptiveSampler.choose`."""
    number, key = len(next(iter(planned.values()))), jax.random.key(seed)

    def choose() -> Callable[..., Values]:
        return lambda key, begins, ledger, values: sampler.choose(
            key, begins, ledger, values, space
        )

    begins, ledger = next(_rounds(np.zeros((number, NUM_PHASES), np.float32), seed))
    drawn = _draw(space, number, key)
    arguments = (key, begins, ledger, drawn)
    raise_for(sampler, "samplers", _check_program("choose", choose, arguments, drawn))
    raise_for(sampler, "samplers", _check_choices(choose(), planned, space, seed))


def _check_members(sampler: Any) -> Iterator[str]:
    """Yield problems of what a sampler has."""
    if isinstance(sampler, type):
        yield "it is a class: make an instance"
        return
    if not isinstance(sampler, Sampler):
        yield "it has no plan"
    try:
        hash(sampler)
    except TypeError:
        yield "it cannot be hashed: make it a frozen dataclass of plain values"


def _check_program(
    name: str, function: Callable[[], Callable[..., Values]], arguments: Any, drawn: Values
) -> Iterator[str]:
    """Yield problems of a sampler's function and the shapes of its values, without running it.

    Args:
      function: returns it as a new function, which jit traces again.
      drawn: values of the right names, shapes and dtypes.
    """
    try:
        found = jax.eval_shape(function(), *arguments)
    except jax.errors.JAXTypeError as error:
        yield f"{name} must work inside jit: {str(error).splitlines()[0]}"
        return
    if not isinstance(found, dict) or set(found) != set(drawn):
        yield f"{name} must return a dictionary with the values {sorted(drawn)}"
        return
    yield from wrong_arrays(name, {field: (found[field], x) for field, x in drawn.items()})
    texts = {jax.jit(function()).lower(*arguments).as_text() for _ in range(2)}
    if len(texts) > 1:
        yield f"{name} differs from call to call: {KEY_ONLY}"


def _check_plans(plan: Callable[[Array], Values], space: spaces.Space, key: Array) -> Iterator[str]:
    """Yield problems of plans for several keys."""
    alone, keys = jax.jit(plan), jax.random.split(key, 2)
    yield from _outside("plan", alone(key), space)
    yield from _outside("plan under vmap", jax.jit(jax.vmap(plan))(keys), space)
    if not _are_equal(alone(key), alone(key)):
        yield f"plan gives other values the next time: {KEY_ONLY}"


def _check_choices(
    choose: Callable[..., Values], planned: dict[str, np.ndarray], space: spaces.Space, seed: int
) -> Iterator[str]:
    """Yield problems of what trials begin with, in several searches."""
    number = len(next(iter(planned.values())))
    alone, lanes = jax.jit(choose), jax.jit(jax.vmap(choose, (0, None, None, None)))
    keys = jax.random.split(jax.random.key(seed), 2)
    others = _draw(space, number, keys[1])
    for kind, scores in random_scores(number, NUM_PHASES, seed):
        values = planned
        for begins, ledger in _rounds(scores, seed):
            found = _at(begins, alone(keys[0], begins, ledger, values))
            again = _at(begins, alone(keys[0], begins, ledger, values))
            both = _at(begins, lanes(keys, begins, ledger, values))
            is_later = ~begins & (ledger.reported == 0)
            changed = {name: np.where(is_later, others[name], x) for name, x in values.items()}
            elsewhere = _at(begins, alone(keys[0], begins, ledger, changed))
            for problem in _outside("choose", found, space):
                yield f"{problem}, with {kind} scores"
            for problem in _outside("choose under vmap", both, space):
                yield f"{problem}, with {kind} scores"
            if not _are_equal(found, again):
                yield f"choose gives other values the next time: {KEY_ONLY}"
            if not _are_equal(found, elsewhere):
                yield f"choose depends on the plans of trials that begin later, with {kind} scores"
            values = {name: x.copy() for name, x in values.items()}
            for name, x in found.items():
                values[name][begins] = x


def _rounds(scores: np.ndarray, seed: int) -> Iterator[tuple[np.ndarray, Ledger]]:
    """Yield the trials that begin in each round of a search, `[N]` bool, and all scores so far.

    Args:
      scores: `[N, P]`, what trials score if they train the phase.
    """
    generator = np.random.default_rng(seed)
    number, num_phases = scores.shape
    together, trials = max(number // 4, 1), np.arange(number)
    for first in range(together, number, together):
        begins = (trials >= first) & (trials < first + together)
        reported = generator.integers(1, num_phases + 1, number).astype(np.int32)
        reported[first:] = 0
        status = np.where(generator.random(number) < 0.5, Status.STOPPED, Status.RUNNING)
        status[reported == num_phases] = Status.COMPLETED
        status[first:] = np.where(begins, Status.RUNNING, Status.WAITING)[first:]
        seen = np.where(np.arange(num_phases) < reported[:, None], scores, np.float32(np.nan))
        yield begins, Ledger(*map(jnp.asarray, (seen, reported, status.astype(np.int32))))


def _draw(space: spaces.Space, number: int, key: Array) -> Values:
    """Return random values of so many trials."""
    return jax.jit(jax.vmap(lambda key: spaces.draw(space, key)))(jax.random.split(key, number))


def _outside(where: str, found: dict[str, Any], space: spaces.Space) -> Iterator[str]:
    """Yield the fields with a value that is not within their distributions."""
    for name, distribution in spaces.unconditional(space).items():
        x = np.asarray(found[name])
        outside = x[~contains(distribution, x)]
        if outside.size:
            yield f"{where}: {name} must be within {distribution}, is {outside[0]}"


def _at(begins: np.ndarray, values: Values) -> dict[str, np.ndarray]:
    """Return the values `[..., N]` of the trials that begin."""
    return {name: np.asarray(x)[..., begins] for name, x in values.items()}


def _are_equal(values: dict[str, Any], others: dict[str, Any]) -> bool:
    return all(np.array_equal(x, others[name], equal_nan=True) for name, x in values.items())
