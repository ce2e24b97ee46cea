"""Population-based bandits: copies take the settings from which a model expects the most.

All trials and phases so far are data: with which settings, at which time and from which score an
agent trained, and how its score changed. A Gaussian process models the change.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl.ops import gaussian_process
from jaxrl.ops.gaussian_process import Kernel, Points, Posterior
from jaxrl.tuning.evolution.pbt import PBT
from jaxrl.tuning.explorers import Generation
from jaxrl.tuning.spaces import distributions
from jaxrl.tuning.spaces import space as spaces
from jaxrl.types import Array

# Kernels to choose from: lengths in the unit cube, and noise as a part of the changes' variance.
LENGTHSCALES = (0.1, 0.2, 0.4, 0.8)
FORGETTINGS = (0.01, 0.1, 0.3)
NOISES = (0.03, 0.3)


class Changes(NamedTuple):
    """Changes of scores in the phases that have ended, in the units of the model."""

    before: Array
    """`[N, P]`: the score of an agent before each phase, from 0 to 1; 0 where it is not finite."""
    change: Array
    """`[N, P]`: the change in the phase, with mean 0 and variance 1, and within 2."""
    is_known: Array
    """`[N, P]` bool: the phases in which both scores are finite."""
    next_before: Array
    """`[N]`: the score before the coming phase, like `before`."""


@dataclass(frozen=True)
class PB2(PBT):
    """Population-based bandits, PB2 (Parker-Holder et al. 2020, arXiv 2002.02518).

    Agents become copies of better ones as in `PBT`. Their real numbers and integers are then
    chosen, one copy after another, by the upper confidence bound

        argmax_x  mu(x) + sqrt(beta) sigma(x),    beta = 0.2 + max(0, log(0.4 n)),

    of a Gaussian process, given n observed changes of scores. Its inputs are the time, in phases,
    and the score before the phase and the hyperparameters, each scaled to the unit interval; see
    `gaussian_process` for the time-varying kernel. Every agent that goes on, and every copy that
    has its settings already, counts as an observation at its mean: sigma is small near it, and the
    copies of a phase explore different settings.

    Until changes are known, as after the first phase, all means are equal, and copies take settings
    far from those of others. NaN and -inf are no observations.

    Choices are explored as in `PBT`, by `resample` and `factors`, and the process does not see
    them. It sees the drawn value of a conditional field (`When`) also where the field is inactive.

    The weight beta is that of the public code of the authors of MF-PBT, who compare with PB2.

    Differences from the paper: the bound is maximized over `candidates` random settings instead of
    by gradients, and the kernel's parameters are those of the largest likelihood among 24 instead
    of being optimized. Each phase costs time that grows with the cube of `num_trials * num_phases`.
    """

    candidates: int = 256
    """Settings, drawn uniformly in the unit cube, of which each copy takes the best."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, checks.integer, "candidates")

    def evolve(
        self,
        key: Array,
        phase: Array,
        scores: Array,
        values: dict[str, Array],
        parents: Array,
        space: spaces.PlainSpace,
    ) -> Generation:
        """Return the next generation after a phase; see `Explorer.evolve`."""
        exploit_key, explore_key, place_key = jax.random.split(key, 3)
        parent = self.exploit(exploit_key, scores[:, phase])
        is_copy = parent != jnp.arange(len(parent))
        following = {name: x[parent, phase] for name, x in values.items()}
        explored = self.explore(explore_key, following, space)
        numeric = {
            name: part
            for name, part in sorted(space.items())
            if isinstance(part, distributions.Numeric)
        }
        if numeric:
            changes = changes_of_scores(scores, parents, scores[parent, phase])
            posterior = model(changes, values, numeric)
            explored |= place(
                place_key, self.candidates, posterior, phase + 1, changes.next_before, is_copy,
                {name: following[name] for name in numeric}, numeric,
            )  # fmt: skip
        return Generation(
            parent, {name: jnp.where(is_copy, explored[name], x) for name, x in following.items()}
        )


def changes_of_scores(scores: Array, parents: Array, next_before: Array) -> Changes:
    """Return how the scores of agents changed.

    Args:
      scores: `[N, P]`, NaN in phases to come.
      parents: `[N, P]`: the trial whose agent each one continued with after each phase.
      next_before: `[N]`: the scores of the agents that go on.
    """
    largest = jnp.max(jnp.where(jnp.isfinite(scores), jnp.abs(scores), 0))
    largest = jnp.maximum(largest, jnp.finfo(jnp.float32).tiny)  # squares must not overflow
    scores, next_before = scores / largest, next_before / largest
    earlier = scores[parents[:, :-1], jnp.arange(scores.shape[1] - 1)]
    before = jnp.pad(earlier, ((0, 0), (1, 0)), constant_values=jnp.nan)
    change = scores - before
    is_known = jnp.isfinite(change)
    number = jnp.maximum(is_known.sum(), 1)
    mean = jnp.where(is_known, change, 0).sum() / number
    spread = jnp.sqrt(jnp.where(is_known, (change - mean) ** 2, 0).sum() / number)
    change = jnp.where(is_known, (change - mean) / jnp.where(spread > 0, spread, 1), 0)
    lowest = jnp.min(jnp.where(jnp.isfinite(scores), scores, jnp.inf))
    span = jnp.max(jnp.where(jnp.isfinite(scores), scores, -jnp.inf)) - lowest

    def scaled(score: Array) -> Array:
        return jnp.where(jnp.isfinite(score), (score - lowest) / jnp.where(span > 0, span, 1), 0)

    return Changes(scaled(before), jnp.clip(change, -2, 2), is_known, scaled(next_before))


def model(
    changes: Changes, values: dict[str, Array], space: Mapping[str, distributions.Numeric]
) -> Posterior:
    """Return the Gaussian process given all changes; its last N slots are empty.

    The first phase has no slots, since nothing was scored before it.
    """
    number, num_phases = changes.change.shape
    time = jnp.broadcast_to(jnp.arange(1.0, num_phases), (number, num_phases - 1)).reshape(-1)
    inputs = jnp.concatenate([spaces.places(space, values), changes.before[..., None]], axis=-1)
    inputs = inputs[:, 1:].reshape(-1, inputs.shape[-1])

    def with_empty_slots(x: Array) -> Array:
        return jnp.pad(x, [(0, number)] + [(0, 0)] * (x.ndim - 1))

    grid = jnp.array(list(itertools.product(LENGTHSCALES, FORGETTINGS, NOISES)))
    return gaussian_process.fit_best(
        Kernel(*grid.T),
        jax.tree.map(with_empty_slots, Points(time, inputs)),
        with_empty_slots(changes.change[:, 1:].reshape(-1)),
        with_empty_slots(changes.is_known[:, 1:].reshape(-1)),
    )


def place(
    key: Array,
    num_candidates: int,
    posterior: Posterior,
    phase: Array,
    before: Array,
    is_copy: Array,
    values: dict[str, Array],
    space: Mapping[str, distributions.Numeric],
) -> dict[str, Array]:
    """Return the values `[N]` with which trials train next; those of copies maximize the bound.

    Args:
      posterior: its last N slots are empty.
      phase: the coming phase.
      before: `[N]`: the agents' scores, scaled.
      values: `[N]` each: those of trials that are no copies stay.
    """
    number, now = len(is_copy), jnp.asarray(phase, jnp.float32)
    beta = exploration(posterior.is_set.sum())

    def choose(posterior: Posterior, trial: Array, key: Array) -> dict[str, Array]:
        drawn = jax.random.uniform(key, (len(space), num_candidates))
        candidates = {
            name: part.at(u).astype(values[name].dtype)
            for (name, part), u in zip(space.items(), drawn, strict=True)
        }
        inputs = jnp.pad(
            spaces.places(space, candidates), ((0, 0), (0, 1)), constant_values=before[trial]
        )
        bound = upper_bound(posterior, Points(jnp.full(num_candidates, now), inputs), beta)
        return {name: x[jnp.argmax(bound)] for name, x in candidates.items()}

    def keep(posterior: Posterior, trial: Array, key: Array) -> dict[str, Array]:
        return {name: x[trial] for name, x in values.items()}

    def step(posterior: Posterior, row: tuple[Array, Array, Array]) -> tuple[Posterior, dict]:
        slot, trial, key = row
        chosen = jax.lax.cond(is_copy[trial], choose, keep, posterior, trial, key)
        inputs = jnp.append(spaces.places(space, chosen), before[trial])
        return gaussian_process.expect(posterior, slot, now, inputs), chosen

    order = jnp.argsort(is_copy, stable=True)  # first the agents that keep their settings
    slots = jnp.arange(number) + len(posterior.is_set) - number
    _, chosen = jax.lax.scan(step, posterior, (slots, order, jax.random.split(key, number)))
    return {name: jnp.zeros_like(x).at[order].set(x) for name, x in chosen.items()}


def exploration(num_observed: Array) -> Array:
    """Return beta, the weight of the variance in the upper confidence bound."""
    return 0.2 + jnp.maximum(0.0, jnp.log(0.4 * jnp.maximum(num_observed, 1)))


def upper_bound(posterior: Posterior, points: Points, beta: Array | float) -> Array:
    """Return the upper confidence bound `[n]` of the change at points."""
    mean, deviation = gaussian_process.predict(posterior, points)
    return mean + jnp.sqrt(beta) * deviation
