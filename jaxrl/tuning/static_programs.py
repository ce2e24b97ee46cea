"""The programs of a search over static fields: one for each combination of their values.

Traced fields (learning rate, gamma) are numbers within a program. Static fields (rollout length,
widths, `num_envs`) change the program, so trials share one only if their static values are equal.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax

from jaxrl.envs import make
from jaxrl.tuning.spaces import space as spaces
from jaxrl.types import Algorithm

MOST_COMBINATIONS = 64
"""Combinations of static values that are checked, unless a field alone has more values."""
MOST_VALUES = 256
"""Values of one field that are checked."""


class Program(NamedTuple):
    """The program and settings that trials with equal static values share."""

    algo: Algorithm
    """Another object for each program, so that it tells programs apart."""
    steps_per_update: int


class StaticPrograms:
    """The programs of a search; each is made when its first trial begins.

    Args:
      config: gives the values that are not searched.
    """

    def __init__(self, algo: Algorithm, config: Any, space: spaces.Space):
        self.config = config
        self.static_names = spaces.static_names(space, type(config))
        """The searched fields that are static."""
        self.has_spread_agents = algo.lane_axis is not None
        """Whether each agent is spread over devices already."""
        self._algo = algo
        self._programs: dict[Any, Program] = {}

    def find(self, values: dict[str, Any]) -> tuple[Any, Program]:
        """Return the config of a trial with these values, and its program."""
        values = dict(values)
        num_envs = values.pop("num_envs", self._algo.env.num_envs)
        config = self.config.replace(**values)
        static = (num_envs, *(getattr(config, name, None) for name in self.static_names))
        if static not in self._programs:
            algo = self._algorithm(num_envs)
            self._programs[static] = Program(algo, num_envs * algo.num_steps(config))
        return config, self._programs[static]

    def _algorithm(self, num_envs: int) -> Algorithm:
        algo = self._algo
        if num_envs == algo.env.num_envs:
            return algo._replace() if self.static_names else algo
        if algo.make is None:
            raise ValueError(f"num_envs is searched, but {algo.name!r} has no `make`")
        env = make(algo.env.id, num_envs=num_envs, **algo.env.options)
        return algo.make(env, algo.network)

    def check(self, space: spaces.Space) -> None:
        """Raise ValueError, before any work, if a program refuses static values of the space.

        Of very many combinations, only some are tried.
        """
        values = [spaces.possible(space[name]) for name in self.static_names]
        for combination in _combinations(values):
            chosen = dict(zip(self.static_names, combination, strict=True))
            config, program = self.find(spaces.without_inactive(space, chosen))
            jax.eval_shape(program.algo.init, config, jax.random.key(0))


def _combinations(values: Sequence[Sequence[Any]]) -> Iterable[tuple[Any, ...]]:
    """Return all combinations, or, of too many, some that have each value at least once."""
    if math.prod(map(len, values)) <= MOST_COMBINATIONS:
        return itertools.product(*values)
    number = min(max(MOST_COMBINATIONS, *map(len, values)), MOST_VALUES)
    shuffle = random.Random(0)

    def column(field_values: Sequence[Any]) -> list[Any]:
        repetitions = -(-number // len(field_values))
        shuffled = [shuffle.sample(field_values, len(field_values)) for _ in range(repetitions)]
        return list(itertools.chain(*shuffled))[:number]

    return zip(*map(column, values), strict=True)
