"""Population-based training: agents copy better ones and change their settings while they train.

After each phase of a search the worst agents take over what better agents have learned, and go on
with settings near theirs. So the search finds a schedule of settings instead of fixed ones.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl.tuning.explorers import Generation
from jaxrl.tuning.schedulers.contract import Ledger
from jaxrl.tuning.schedulers.ledger import ranks
from jaxrl.tuning.spaces import space as spaces
from jaxrl.types import Array


@dataclass(frozen=True)
class PBT:
    """Population-based training (Jaderberg et al. 2017, arXiv 1711.09846).

    After each phase, an agent among the worst `quantile` of the population, at least one, continues
    as a copy of one among as many of the best (the paper's truncation selection). Each of its
    hyperparameters is drawn again with probability `resample`, and otherwise multiplied by one of
    `factors`, or moved to the next value of a choice. No trial stops, and all train side by side.
    Nobody copies an agent whose score is NaN or -inf.
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
        check_factors(self.factors)
        if self.quantile > 0.5:
            raise checks.refuse("quantile", "at most 0.5", self.quantile)

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
        num_donors = jnp.minimum(jnp.isfinite(scores).sum(), moved)
        drawn = jax.random.randint(key, (number,), 0, jnp.maximum(num_donors, 1))
        copies = (rank >= number - moved) & (num_donors > 0)
        return jnp.where(copies, jnp.argsort(rank)[drawn], jnp.arange(number)).astype(jnp.int32)

    def num_copies(self, number: int) -> int:
        """Return how many of this number of agents are copies: at least one if they can be."""
        least = 1 if self.quantile > 0 else 0
        return min(max(int(self.quantile * number + 1e-9), least), number // 2)

    def explore(
        self, key: Array, values: dict[str, Array], space: spaces.PlainSpace
    ) -> dict[str, Array]:
        """Return changed values, `[N]` each."""
        return perturb(key, values, space, self.factors, self.resample)


def perturb(
    key: Array,
    values: dict[str, Array],
    space: spaces.PlainSpace,
    factors: tuple[float, float],
    resample: float,
) -> dict[str, Array]:
    """Return values `[N]` that are drawn again with probability `resample`, and moved otherwise.

    A value moves by one of the two factors, each equally likely; see `move` of its distribution.
    """
    keys = jax.random.split(key, len(space))

    def change(name: str, key: Array, value: Array) -> Array:
        draw_key, resample_key, factor_key = jax.random.split(key, 3)
        factor = jax.random.choice(factor_key, jnp.array(factors, jnp.float32))
        moved, drawn = space[name].move(value, factor), space[name].draw(draw_key)
        return jnp.where(jax.random.bernoulli(resample_key, resample), drawn, moved)

    changed = {}
    for name, name_key in zip(sorted(space), keys, strict=True):
        lane_keys = jax.random.split(name_key, len(values[name]))
        lanes = jax.vmap(lambda key, value, name=name: change(name, key, value))
        changed[name] = lanes(lane_keys, values[name]).astype(values[name].dtype)
    return changed


def check_factors(factors: tuple[float, float]) -> None:
    """Raise `ValueError` unless one factor is below and one above 1."""
    low, high = checks.array("factors", factors, (2,), checks.POSITIVE)
    if not low < 1 < high:
        raise checks.refuse("factors", "one below and one above 1", factors)
