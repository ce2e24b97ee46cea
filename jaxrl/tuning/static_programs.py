"""The programs of a search over static fields: one for each combination of their values.

Traced fields (learning rate, gamma) are numbers within a program. Static fields (rollout length,
widths, `num_envs`) change the program, so trials share one only if their static values are equal.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax

from jaxrl.algos.q_learning import QLearningConfig
from jaxrl.networks.build import NetworkConfig, PolicyConfig
from jaxrl.tuning.spaces import space as spaces
from jaxrl.types import Algorithm, remake

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
        return remake(algo, _with_num_envs(algo.env, num_envs))

    def first(self, space: spaces.Space) -> tuple[Any, Program]:
        """Return the config and the program of the first static values of the space."""
        chosen = {name: spaces.possible(space[name])[0] for name in self.static_names}
        return self.find(spaces.without_inactive(space, chosen))

    def check(self, space: spaces.Space) -> None:
        """Raise ValueError, before any work, if a program refuses or ignores static values.

        Of very many combinations, only some are tried.
        """
        network = self._algo.network
        if network is not None and (ignored := sorted(network_fields(self.config) & {*space})):
            raise ValueError(
                f"{ignored} describe the network that a config builds, but {self._algo.name!r} has "
                f"one of its own, {type(network).__name__}: leave them out of the space, or leave "
                "out the network"
            )
        values = [spaces.possible(space[name]) for name in self.static_names]
        for combination in _combinations(values):
            chosen = dict(zip(self.static_names, combination, strict=True))
            config, program = self.find(spaces.without_inactive(space, chosen))
            jax.eval_shape(program.algo.init, config, jax.random.key(0))


def network_fields(config: Any) -> set[str]:
    """Return the fields of a config that describe its network and nothing else."""
    kinds = [kind for kind in (NetworkConfig, PolicyConfig) if isinstance(config, kind)]
    names = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    return names | ({"dueling"} if isinstance(config, QLearningConfig) else set())


def _with_num_envs(env: Any, num_envs: int) -> Any:
    """Return the same environments, but so many of them.

    Made anew from their id they would lose what it does not say, such as a function of the user.

    Raises:
      ValueError: for environments that cannot be copied.
    """
    if "num_envs" not in getattr(type(env), "__dataclass_fields__", {}):
        raise ValueError(
            f"num_envs is searched, but the environments of {env.id}, a {type(env).__name__}, are "
            "no dataclass with that field; make them one, or leave num_envs out of the space"
        )
    return dataclasses.replace(env, num_envs=num_envs)


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
