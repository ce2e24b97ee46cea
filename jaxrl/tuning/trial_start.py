"""What a trial begins with: its hyperparameters, and the keys of its agents.

They depend on the search's key and the trial's index only. So a sweep from the host begins the same
trials as a search in one program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl.tuning.explorers import Sampler
from jaxrl.tuning.spaces import space as spaces
from jaxrl.types import Array


class TrialSource(NamedTuple):
    """The first hyperparameters and the keys of a sweep's trials, by index."""

    values: Callable[[int], dict[str, Any]]
    """The hyperparameters, which samplers that learn from the study do not use."""
    key: Callable[[int], Array]


def source_of_search(
    sampler: Sampler | None, space: spaces.Space, key: Array, num_trials: int
) -> TrialSource:
    """Return what a search with this sampler, or random search, gives to its trials."""

    @functools.cache
    def planned() -> dict[str, Array]:
        return jax.jit(lambda key: plan(sampler, space, key, num_trials))(key)

    def values(trial: int) -> dict[str, Any]:
        return spaces.values(space, {name: x[trial] for name, x in planned().items()})

    return TrialSource(values, functools.partial(trial_key, key))


def trial_key(key: Array, trial: Array | int) -> Array:
    """Return the key of a trial's agent, given the search's key."""
    key, trial = checks.random_key("key", key), checks.index("trial", trial)
    return jax.random.fold_in(jax.random.fold_in(key, trial), 0)


def agent_keys(key: Array, seeds_per_trial: int) -> Array:
    """Return the keys of a trial's agents, given the trial's key."""
    return key[None] if seeds_per_trial == 1 else jax.random.split(key, seeds_per_trial)


def trial_values(space: spaces.Space, key: Array, trial: Array | int) -> dict[str, Array]:
    """Return the hyperparameters that random search gives to a trial, given the search's key.

    A field of `When` has a value in every trial, and the search uses it where the field is active.
    """
    spaces.check_distributions(space)
    key, trial = checks.random_key("key", key), checks.index("trial", trial)
    return spaces.draw(space, jax.random.fold_in(jax.random.fold_in(key, trial), 1))


def sampler_key(key: Array) -> Array:
    """Return the key of a sampler, given the search's key."""
    return jax.random.fold_in(jax.random.fold_in(key, 0), 3)


def plan(
    sampler: Sampler | None, space: spaces.Space, key: Array, num_trials: int
) -> dict[str, Array]:
    """Return the hyperparameters of all trials before any begins, given the search's key.

    They are random without a sampler.

    Raises:
      ValueError: if a sampler's names, shapes or dtypes are not those of random ones.
    """

    def random(key: Array) -> dict[str, Array]:
        trials = jnp.arange(num_trials, dtype=jnp.int32)
        return jax.vmap(lambda trial: trial_values(space, key, trial))(trials)

    if sampler is None:
        return random(key)
    planned = sampler.plan(sampler_key(key), num_trials, space)
    expected = jax.eval_shape(random, key)
    forms = [
        {name: f"{x.dtype}{list(x.shape)}" for name, x in sorted(values.items())}
        for values in (planned, expected)
    ]
    if forms[0] != forms[1]:
        raise ValueError(f"{sampler}: `plan` must return {forms[1]}, returned {forms[0]}")
    return planned
