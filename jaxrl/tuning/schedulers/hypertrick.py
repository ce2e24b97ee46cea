"""HyperTrick: a trial that scores low among those before it stops, and none waits."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import jax.numpy as jnp

from jaxrl import checks
from jaxrl.tuning.schedulers.contract import Ledger, Status
from jaxrl.types import Array


@dataclass(frozen=True)
class HyperTrick:
    """HyperTrick: early termination without waiting for other trials (arXiv 1902.02725).

    With N trials, P phases and eviction rate r: of the trials that report phase p (from 0), the
    earliest `N (1 - sqrt r) (1 - r)^p` continue. A later one stops if it lies in the bottom
    `sqrt r` quantile of the scores reported for p so far. The first score of a phase has none to
    compare with, so its trial continues, also where N is too small to spare one. Half of equal
    scores count as lower. A trial without a score continues and is not ranked. Unlike the paper's
    rule, a trial that diverged always stops: more phases would not bring it back. For exchangeable
    scores, a share r of the trials that reach a phase stops at its end, and the expected share of
    full work is `E[alpha] = (1 - (1 - r)^P) / (r P)`. Scores are exchangeable if the order of
    reports says nothing about them. Where good trials stay good, fewer stop and the search costs
    more: bad ones that were spared fill the bottom quantile of the next phases.
    """

    num_trials: int
    num_phases: int
    eviction_rate: float = 0.25
    """r, the share of trials that stop at the end of each phase."""
    pauses: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "num_trials", "num_phases")
        checks.fields(self, checks.number, "eviction_rate", allowed=checks.BELOW_ONE)

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        phase = ledger.reported[trial] - 1
        score = ledger.scores[trial, phase]
        others = ledger.scores[:, phase].at[trial].set(jnp.nan)
        num_reported = (ledger.reported > phase).sum()
        stops = self.should_stop(score, others, phase, num_reported)
        status = jnp.where(stops, Status.STOPPED, ledger.status[trial])
        return ledger.status.at[trial].set(status)

    def should_stop(self, score: Array, others: Array, phase: Array, num_reported: Array) -> Array:
        """Return whether a trial with this score stops after the phase.

        Args:
          others: the other trials' scores of the phase, NaN where there is none.
          num_reported: how many trials have reported the phase, including this one.
        """
        root = math.sqrt(self.eviction_rate)
        spared = self.num_trials * (1 - root) * (1 - self.eviction_rate) ** phase
        below = (others < score).sum() + 0.5 * (others == score).sum()
        count = (~jnp.isnan(others)).sum() + 1
        is_low = (count > 1) & (below + 0.5 < root * count)
        stops = (num_reported > spared) & ~jnp.isnan(score) & is_low
        return stops | jnp.isneginf(score)
