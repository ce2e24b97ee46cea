"""Lineages of a sweep's trials: whom each continued as after each phase, and with which values.

`Evolution` decides them as a search in one program does. The other functions read them from trials
as `sweep.json` holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def values_in(trial: Mapping[str, Any], phase: int) -> dict[str, Any]:
    """Return the values with which a trial of `sweep.json` trains a phase."""
    changes = trial.get("changes", [])[:phase]
    return changes[-1]["values"] if changes else trial["values"]


def schedule_of(
    trials: Iterable[Mapping[str, Any]], trial: int, num_phases: int
) -> list[dict[str, Any]]:
    """Return who trained the agent that a trial had after so many phases, and with which values.

    Returns:
      For each phase its number from 0, `phase`, the `trial` that trained it, and its `values`.
    """
    by_index = {each["trial"]: each for each in trials}
    schedule = []
    for phase in reversed(range(num_phases)):
        row = by_index[trial]
        schedule.append({"phase": phase, "trial": trial, "values": values_in(row, phase)})
        if phase:
            trial = row["changes"][phase - 1]["parent"]
    return schedule[::-1]
