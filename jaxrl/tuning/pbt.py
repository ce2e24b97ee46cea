"""Population-based training: agents copy better ones and change their settings while they train.

After each phase of a search the worst agents take over what better agents have learned, and go on
with settings near theirs. So the search finds a schedule of settings instead of fixed ones.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl.tuning import space as spaces
from jaxrl.tuning.schedulers import Ledger, Scheduler, ranks
from jaxrl.types import Array


class Generation(NamedTuple):
    """N trials as they go on after a phase."""

    parent: Array
    """`[N]` int32: the trial whose agent each one continues with, its own index if it keeps its."""
    values: dict[str, Array]
    """The hyperparameters of the next phase, `[N]` each."""


@runtime_checkable
class Explorer(Scheduler, Protocol):
    """A scheduler that changes trials after each phase, and stops none.

    All trials train side by side. Agents need a state with the field `key`, which copies of an
    agent do not share.
    """

    def evolve(
        self,
        key: Array,
        phase: Array,
        scores: Array,
        values: dict[str, Array],
        space: spaces.Space,
    ) -> Generation:
        """Return the next generation after a phase.

        Args:
          phase: the phase that has ended, from 0.
          scores: `[N, P]`, NaN in later phases.
          values: the hyperparameters of each phase, `[N, P]` each.
        """
        ...


@dataclass(frozen=True)
class PBT:
    """Population-based training (Jaderberg et al. 2017, arXiv 1711.09846).

    After each phase, an agent among the worst `quantile` of the population, at least one, continues
    as a copy of one among as many of the best (the paper's truncation selection). Each of its
    hyperparameters is drawn again with probability `resample`, and otherwise multiplied by one of
    `factors`, or moved to the next value of a choice. No trial stops, and all train side by side.
    """

    num_trials: int
    num_phases: int
    quantile: float = 0.2
    resample: float = 0.25
    factors: tuple[float, float] = (0.8, 1.2)
    pauses: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "num_trials", "num_phases")
        checks.fields(self, checks.number, "quantile", "resample", allowed=checks.UNIT_INTERVAL)
        low, high = checks.array("factors", self.factors, (2,), checks.POSITIVE)
        if self.quantile > 0.5:
            raise checks.refuse("quantile", "at most 0.5", self.quantile)
        if not low < 1 < high:
            raise checks.refuse("factors", "one below and one above 1", self.factors)

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        return ledger.status

    def evolve(
        self,
        key: Array,
        phase: Array,
        scores: Array,
        values: dict[str, Array],
        space: spaces.Space,
    ) -> Generation:
        """Return the next generation after a phase; see `Explorer.evolve`."""
        exploit_key, explore_key = jax.random.split(key)
        parent = self.exploit(exploit_key, scores[:, phase])
        inherited = {name: x[parent, phase] for name, x in values.items()}
        explored = self.explore(explore_key, inherited, space)
        is_copy = parent != jnp.arange(len(parent))
        return Generation(
            parent, {name: jnp.where(is_copy, explored[name], x) for name, x in inherited.items()}
        )

    def exploit(self, key: Array, scores: Array) -> Array:
        """Return the trial that each one continues as, `[N]`, given the scores `[N]`."""
        number = len(scores)
        moved = self.num_copies(number)
        rank = ranks(scores, jnp.ones(number, bool))
        donors = jnp.argsort(rank)[jax.random.randint(key, (number,), 0, max(moved, 1))]
        is_worst = (rank >= number - moved) & (moved > 0)
        return jnp.where(is_worst, donors, jnp.arange(number)).astype(jnp.int32)

    def num_copies(self, number: int) -> int:
        """Return how many of this number of agents are copies: at least one if they can be."""
        least = 1 if self.quantile > 0 else 0
        return min(max(int(self.quantile * number + 1e-9), least), number // 2)

    def explore(
        self, key: Array, values: dict[str, Array], space: spaces.Space
    ) -> dict[str, Array]:
        """Return changed values, `[N]` each."""
        keys = jax.random.split(key, len(space))

        def change(name: str, key: Array, value: Array) -> Array:
            draw_key, resample_key, factor_key = jax.random.split(key, 3)
            factor = jax.random.choice(factor_key, jnp.array(self.factors, jnp.float32))
            moved, drawn = space[name].move(value, factor), space[name].draw(draw_key)
            return jnp.where(jax.random.bernoulli(resample_key, self.resample), drawn, moved)

        changed = {}
        for name, name_key in zip(sorted(space), keys, strict=True):
            lane_keys = jax.random.split(name_key, len(values[name]))
            lanes = jax.vmap(lambda key, value, name=name: change(name, key, value))
            changed[name] = lanes(lane_keys, values[name]).astype(values[name].dtype)
        return changed


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
