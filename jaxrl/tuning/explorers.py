"""Contracts of rules that choose hyperparameters in a search in one program.

An `Explorer` changes those of trials after each phase; `jaxrl.tuning.evolution` has explorers. A
`Sampler` gives trials those with which they begin; `jaxrl.tuning.samplers` has samplers.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jaxrl.tuning.schedulers.contract import Ledger, Scheduler
from jaxrl.tuning.spaces import space as spaces
from jaxrl.types import Array


class Generation(NamedTuple):
    """N trials as they go on after a phase."""

    parent: Array
    """`[N]` int32: the trial whose agent each one continues with, its own index if it keeps its.
    Where any trial has a finite score, each agent that is copied must have one."""
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
        space: spaces.PlainSpace,
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


@runtime_checkable
class Sampler(Protocol):
    """A rule that gives trials their hyperparameters: a frozen dataclass.

    `jaxrl.tuning.check_sampler` checks samplers against this contract.
    """

    def plan(self, key: Array, num_trials: int, space: spaces.Space) -> dict[str, Array]:
        """Return the hyperparameters of all trials before any has begun, `[N]` each.

        `jaxrl.tuning.spaces.space.at` makes them of points in the unit cube. A sampler without
        `choose` needs no more.
        """
        ...


@runtime_checkable
class AdaptiveSampler(Sampler, Protocol):
    """A sampler that chooses the hyperparameters of later trials by the scores of earlier ones."""

    def choose(
        self,
        key: Array,
        begins: Array,
        ledger: Ledger,
        values: dict[str, Array],
        space: spaces.Space,
    ) -> dict[str, Array]:
        """Return hyperparameters `[N]` each, of which the trials that begin now take theirs.

        It is called after each round in which trials begin, but not for the first ones, which keep
        their plan. Trials begin in the order of their indices.

        Args:
          key: the same in all calls and in `plan`: fold in a trial's index.
          begins: `[N]` bool: the trials that begin now.
          ledger: all scores so far; those of phases that have not been reported are NaN.
          values: the hyperparameters `[N]` each of trials that have begun, and the plan of others.
            The plans of trials that begin later must make no difference.
        """
        ...


def next_generation(
    explorer: Explorer,
    space: spaces.Space,
    key: Array,
    phase: Array,
    scores: Array,
    values: dict[str, Array],
    parents: Array,
) -> Generation:
    """Return the next generation of a search or sweep, given its key; see `Explorer.evolve`."""
    key = jax.random.fold_in(jax.random.fold_in(key, phase), 2)
    return explorer.evolve(key, phase, scores, values, parents, spaces.unconditional(space))


def check_room(explorer: Explorer, num_lanes: int, **caps: float | None) -> None:
    """Raise `ValueError` unless all trials have a lane, and no cap may end the search before them.

    Args:
      caps: such as `max_steps`; None and infinity are none.
    """
    name = type(explorer).__name__
    for cap, most in caps.items():
        if most is not None and most < math.inf:
            raise ValueError(
                f"{cap} must be left out, got {most}: {name} stops no trial; give it fewer trials "
                "or phases"
            )
    if num_lanes < explorer.num_trials:
        raise ValueError(
            f"num_lanes must be at least {explorer.num_trials}, got {num_lanes}: {name} compares "
            "all its trials after each phase, so they train side by side"
        )


def ancestors(parent: Array) -> Array:
    """Return who trained in each phase the agent that a trial has at its end, `[N, P]` int32.

    Args:
      parent: `[N, P]`, `Generation.parent` after each phase; the last column is not read.

    Raises:
      ValueError: for the parents of several searches.
    """
    if parent.ndim != 2:
        raise ValueError(
            f"parent must be that of one search, [N, P], got shape {parent.shape}; take the scores "
            "and schedules of several searches by jax.vmap(lambda result: result.schedule)(results)"
        )
    own = jnp.arange(len(parent), dtype=jnp.int32)

    def step(trained: Array, parent: Array) -> tuple[Array, Array]:
        before = parent[trained]
        return before, before

    _, earlier = jax.lax.scan(step, own, parent[:, :-1].T, reverse=True)
    return jnp.concatenate([earlier.T, own[:, None]], axis=1)


def of_agents(x: Array, parent: Array) -> Array:
    """Return the rows of each trial's last agent: each phase of the trial that trained it then.

    Args:
      x: of trials and phases, `[N, P]`, such as scores.
      parent: see `ancestors`.
    """
    return x[ancestors(parent), jnp.arange(x.shape[1])]
