"""Groups: the trials of a sweep that one program can train, by their values of static fields."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax

from jaxrl.envs import make
from jaxrl.tuning import space as spaces
from jaxrl.types import Algorithm

MOST_CHECKED = 64
"""Combinations of static values, unless a field alone has more values."""
MOST_VALUES = 256
"""Values of one field that are checked."""


class Group(NamedTuple):
    """Trials that one program can train."""

    algo: Algorithm
    steps_per_update: int


class Groups:
    """All groups of a sweep, each made when its first trial comes."""

    def __init__(self, algo: Algorithm, config: Any, space: spaces.Space):
        self._algo, self.config = algo, config
        self.static = spaces.static_names(space, type(config))
        """The searched fields that shape the program."""
        self.spread = algo.lane_axis is not None
        """Whether each agent is spread over devices already."""
        self._groups: dict[Any, Group] = {}

    def check(self, space: spaces.Space) -> None:
        """Raise `ValueError` if a program refuses the values of static fields that it may get,
        before any work; of very many combinations, some."""
        values = [spaces.possible(space[name]) for name in self.static]
        for combination in _combinations(values):
            config, group = self.of(dict(zip(self.static, combination, strict=True)))
            jax.eval_shape(group.algo.init, config, jax.random.key(0))

    def of(self, values: dict[str, Any]) -> tuple[Any, Group]:
        """The config of a trial with these values, and the group it belongs to."""
        values = dict(values)
        num_envs = values.pop("num_envs", self._algo.env.num_envs)
        config = self.config.replace(**values)
        static = (num_envs, *(values.get(name) for name in self.static))
        if static not in self._groups:
            algo = self._algo
            if num_envs != algo.env.num_envs:
                if algo.make is None:
                    raise ValueError(f"num_envs is searched, but {algo.name!r} has no `make`")
                env = make(algo.env.id, num_envs=num_envs, **algo.env.options)
                algo = algo.make(env, algo.network)
            elif self.static:  # a NamedTuple of its own, so that gangs see another group
                algo = algo._replace()
            self._groups[static] = Group(algo, num_envs * algo.num_steps(config))
        return config, self._groups[static]


def _combinations(values: Sequence[Sequence[Any]]) -> Iterable[tuple[Any, ...]]:
    """All combinations, or if they are too many, some that have each value at least once."""
    if math.prod(map(len, values)) <= MOST_CHECKED:
        return itertools.product(*values)
    number = min(max(MOST_CHECKED, *map(len, values)), MOST_VALUES)
    shuffled = random.Random(0)

    def column(of_field: Sequence[Any]) -> list[Any]:
        times = -(-number // len(of_field))
        return [x for _ in range(times) for x in shuffled.sample(of_field, len(of_field))][:number]

    return zip(*map(column, values), strict=True)
