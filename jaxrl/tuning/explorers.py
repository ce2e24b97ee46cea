"""Explorers: the contract of schedulers that change trials after each phase.

`jaxrl.tuning.evolution` has the explorers themselves.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jaxrl.tuning import space as spaces
from jaxrl.tuning.schedulers import Scheduler
from jaxrl.types import Array


class Generation(NamedTuple):
    """N trials as they go on after a phase."""

    parent: Array
    """`[N]` int32: the trial whose agent each one continues with, its own index if it keeps its."""
    values: dict[str, Array]
    """The hyperparameters of the next phase, `[N]` each; a trial that keeps its agent keeps its
    values too."""


@runtime_checkable
class Explorer(Scheduler, Protocol):
    """A scheduler that changes trials after each phase, and stops none.

    All trials train side by side. Agents need a state with the field `key`, which copies of an
    agent do not share. `jaxrl.tuning.check_explorer` checks explorers against this contract.
    """

    def evolve(
        self,
        key: Array,
        phase: Array,
        scores: Array,
        values: dict[str, Array],
        parents: Array,
        space: spaces.Space,
    ) -> Generation:
        """Return the next generation after a phase that is not the last.

        Args:
          phase: the phase that has ended, from 0.
          scores: `[N, P]`, NaN in later phases.
          values: the hyperparameters of each phase, `[N, P]` each.
          parents: `[N, P]` int32: `Generation.parent` after each earlier phase, and the trial
            itself in all other columns.
        """
        ...


def ancestors(parent: Array) -> Array:
    """Return who trained in each phase the agent that a trial has at its end, `[N, P]` int32.

    Args:
      parent: `[N, P]`, `Generation.parent` after each phase; the last column is not read.
    """
    own = jnp.arange(len(parent), dtype=jnp.int32)

    def step(trained: Array, parent: Array) -> tuple[Array, Array]:
        before = parent[trained]
        return before, before

    _, earlier = jax.lax.scan(step, own, parent[:, :-1].T, reverse=True)
    return jnp.concatenate([earlier.T, own[:, None]], axis=1)
