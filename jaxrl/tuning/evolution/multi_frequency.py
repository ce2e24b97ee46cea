"""Population-based training at several frequencies: sub-populations that evolve seldom or often.

Frequent selection prefers settings that pay off soon. Agents that are selected seldom keep settings
that pay off late, and those that are selected often bring better agents to them meanwhile.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl.tuning.evolution.pbt import check_factors, perturb
from jaxrl.tuning.explorers import Generation
from jaxrl.tuning.schedulers.contract import Ledger
from jaxrl.tuning.spaces import space as spaces
from jaxrl.types import Array


class Succession(NamedTuple):
    """From whom N trials take their agents and values."""

    parent: Array
    """`[N]` int32: the trial whose agent each one continues with."""
    source: Array
    """`[N]` int32: the trial whose values each one takes."""
    is_changed: Array
    """`[N]` bool: the trials that change the values they take."""


@dataclass(frozen=True)
class MFPBT:
    """Multiple-frequencies population-based training (Doulazmi et al. 2025, arXiv 2506.03225).

    The trials form as many sub-populations of n trials as there are `periods`, in their order:
    trials 0 to n - 1 are the first one. Sub-population i evolves after every `periods[i]`-th phase.
    Its trials are ranked by their scores of this phase, in quarters:

    - The first two quarters go on as they are.
    - A trial of the third quarter gives way to a migrant, the best trial of all other
      sub-populations that has not migrated there in this phase, if the migrant's score is higher.
      The trial continues with the migrant's agent. A migrant that evolves less often brings its
      values too; for one that evolves more often, the trial takes the values of the best trial of
      its own sub-population. So no values come from more greedy sub-populations.
    - The k-th trial of the last quarter becomes a copy of the k-th one of the first, and multiplies
      each value by one of `factors`.

    No trial stops, and nobody copies an agent whose score is NaN or -inf.

    The rules are those of the authors' public code. Differences: all copies are of agents as they
    were at the end of the phase, where the code may hand on one that was just replaced; values stay
    within the bounds of the space; choices move to the next value; and a migrant with an equal
    score does not replace a trial. The default periods are theirs, for searches of hundreds of
    phases.
    """

    num_trials: int
    num_phases: int
    periods: tuple[int, ...] = (1, 10, 25, 50)
    """The phases from one evolution to the next, ascending, of each sub-population."""
    factors: tuple[float, float] = (0.8, 1.25)
    pauses: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "num_trials", "num_phases")
        checks.fields(self, checks.sizes, "periods")
        check_factors(self.factors)
        if len(self.periods) < 2 or sorted(set(self.periods)) != list(self.periods):
            raise checks.refuse("periods", "at least two, each above the one before", self.periods)
        if self.periods[-1] >= self.num_phases:
            raise ValueError(
                f"periods must be below num_phases={self.num_phases}, since nothing evolves after "
                f"the last phase, got {self.periods}"
            )
        quarters = 4 * len(self.periods)
        if self.num_trials % quarters:
            raise ValueError(
                f"num_trials must be a multiple of {quarters}, four quarters of each of the "
                f"{len(self.periods)} sub-populations, got {self.num_trials}"
            )

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        return ledger.status

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
        parent, source, is_changed = self.succeed(phase, scores[:, phase])
        taken = {name: x[source, phase] for name, x in values.items()}
        changed = perturb(key, taken, space, self.factors, resample=0.0)
        return Generation(
            parent, {name: jnp.where(is_changed, changed[name], x) for name, x in taken.items()}
        )

    def succeed(self, phase: Array, scores: Array) -> Succession:
        """Return from whom trials take their agents and values after a phase."""
        size = self.num_trials // len(self.periods)
        quarter, trials = size // 4, jnp.arange(self.num_trials, dtype=jnp.int32)
        population = trials // size
        # As elsewhere, NaN ranks above -inf and below all others.
        fitness = jnp.where(jnp.isnan(scores), jnp.finfo(jnp.float32).min, scores)
        overall = jnp.argsort(-fitness, stable=True).astype(jnp.int32)
        # Each sub-population's trials, the best first.
        local = overall[jnp.argsort(population[overall], stable=True)].reshape(-1, size)
        best, third, last = (
            local[:, :quarter],
            local[:, 2 * quarter : -quarter],
            local[:, -quarter:],
        )
        has_score = jnp.isfinite(scores)
        best = jnp.where(has_score[best], best, last)

        def migrants(own: Array, thirds: Array) -> Array:
            """Return who replaces each trial of a third quarter, itself if nobody does."""
            outside = overall[jnp.argsort(population[overall] == own, stable=True)]

            def step(used: Array, trial: Array) -> tuple[Array, Array]:
                migrant = outside[used]
                is_better = has_score[migrant] & (fitness[migrant] > fitness[trial])
                return used + is_better, jnp.where(is_better, migrant, trial)

            return jax.lax.scan(step, jnp.int32(0), thirds)[1]

        own = jnp.arange(len(self.periods), dtype=jnp.int32)
        migrant = jax.vmap(migrants)(own, third)
        is_slower = population[migrant] > own[:, None]
        settings = jnp.where(is_slower, migrant, local[:, :1])
        settings = jnp.where(migrant == third, third, settings)
        parent = trials.at[last].set(best).at[third].set(migrant)
        source = trials.at[last].set(best).at[third].set(settings)
        evolves = ((phase + 1) % jnp.array(self.periods) == 0)[population]
        return Succession(
            parent=jnp.where(evolves, parent, trials),
            source=jnp.where(evolves, source, trials),
            is_changed=evolves & jnp.zeros(self.num_trials, bool).at[last].set(best != last),
        )
