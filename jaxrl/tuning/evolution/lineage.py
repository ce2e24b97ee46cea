"""The decisions of an explorer in a sweep: whom each trial continues as, with which values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.tuning.explorers import Explorer, next_generation
from jaxrl.tuning.spaces import space as spaces
from jaxrl.types import Array


class Change(NamedTuple):
    """The agent and the values with which a trial continued after a phase."""

    parent: int
    """The trial whose agent it continued with; itself if it kept its own."""
    values: dict[str, Any]
    """The hyperparameters of the next phase."""


class Evolution:
    """The decisions of an explorer in a sweep, from plain numbers to plain numbers.

    Args:
      key: the search's.
    """

    def __init__(self, explorer: Explorer, space: spaces.Space, key: Array):
        self._space = space
        self._shape = explorer.num_trials, explorer.num_phases
        self._drawn = jax.eval_shape(partial(spaces.draw, space), key)
        self._next = jax.jit(partial(next_generation, explorer, space, key))

    def next(
        self,
        scores: Array,
        first: Mapping[int, Mapping[str, Any]],
        generations: Sequence[Sequence[Change]],
    ) -> list[Change]:
        """Return what each trial continues with after a phase that is not the last.

        Args:
          scores: `[N, P]`, NaN in later phases.
          first: the values with which each trial began.
          generations: what they continued with after each earlier phase.
        """
        num_trials, num_phases = self._shape
        phase, trials = len(generations), np.arange(num_trials, dtype=np.int32)
        parents = np.tile(trials[:, None], num_phases)
        for before, changes in enumerate(generations):
            parents[:, before] = [change.parent for change in changes]
        rows = [[first[trial] for trial in range(num_trials)]]
        rows += [[change.values for change in changes] for changes in generations]
        rows += [rows[-1]] * (num_phases - len(rows))
        values = {
            name: jnp.asarray([[row[trial][name] for row in rows] for trial in trials], drawn.dtype)
            for name, drawn in self._drawn.items()
        }
        found = jax.device_get(self._next(np.int32(phase), scores, values, parents))
        return [
            Change(
                int(found.parent[trial]),
                spaces.values(self._space, {name: x[trial] for name, x in found.values.items()}),
            )
            for trial in trials
        ]
