"""Find and return: a maze made anew for each level, seen through a window, that asks for a memory.

The agent must step onto an object (reward 1, once) and come back to where it began (reward 1, which
ends the episode). It sees the walls and the object near it, nothing else: the object stays where it
is after it was found, and home looks like any other cell. So what the agent sees tells neither
whether it is on its way out or back, nor where home is; it must remember both.

A level is a number, which alone decides the maze, home and the object. As in Procgen (Cobbe et al.
2020, arXiv 1912.01588), episodes draw their level from a limited set, so that an agent can be
trained on some levels and tested on others.

Mazes are binary trees: each cell is open to one of two neighbours, the same two for all cells of a
maze, so that exactly one way leads from any cell to any other. All cells are carved at once from
one draw of random bits, so a maze costs little enough to be made at every step.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.envs import rendering
from jaxrl.types import Array, Box, Discrete, TimeStep

ALL_LEVELS = 2**31 - 1
"""Levels are numbers below this."""
MOVES = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]], np.int32)
"""Rows and columns that the actions up, right, down and left go."""


@dataclass(frozen=True)
class Options:
    """Keywords of `jaxrl.make("maze/FindAndReturn-v0", num_envs, ...)`."""

    size: int = 9
    """Sides of a maze, walls included; odd."""
    view: int = 5
    """Sides of the window around the agent; odd."""
    max_episode_steps: int = 100
    num_levels: int = 0
    """How many levels episodes are drawn from; 0 for all from `first_level` on."""
    first_level: int = 0

    def __post_init__(self) -> None:
        least = {"size": 5, "view": 3, "max_episode_steps": 1, "num_levels": 0, "first_level": 0}
        for name, value in dataclasses.asdict(self).items():
            if type(value) is not int or value < least[name]:
                raise ValueError(f"{name} must be an integer >= {least[name]}, got {value!r}")
            if name in ("size", "view") and value % 2 == 0:
                raise ValueError(f"{name} must be odd, got {value}")
        if self.first_level + max(self.num_levels, 1) > ALL_LEVELS:
            raise ValueError(
                f"levels are numbers below {ALL_LEVELS}, got first_level={self.first_level} and "
                f"num_levels={self.num_levels}"
            )


class Level(NamedTuple):
    """A maze and what is in it; leaves `[N, ...]` for N of them."""

    walls: Array  # [size, size] bool
    home: Array  # [2] int32, row and column
    object: Array  # [2]


class MazeState(NamedTuple):
    """Leaves `[N, ...]`."""

    first_level: Array  # uint32: where the levels begin that episodes are drawn from
    num_levels: Array  # uint32: how many they are, 0 for all
    level: Level
    position: Array  # [2] int32
    found: Array  # bool: the agent was at the object
    time: Array  # int32: steps taken in the episode
    ended: Array  # bool: the next step begins a new episode


def ids() -> list[str]:
    """The one task, without prefix."""
    return ["FindAndReturn-v0"]


@dataclass(frozen=True)
class MazeEnv:
    """N mazes; make it with `jaxrl.make("maze/FindAndReturn-v0", num_envs, **Options)`."""

    name: str
    num_envs: int
    keywords: tuple[tuple[str, Any], ...] = ()
    axis: Axis = SINGLE_DEVICE
    checkpointable: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self) -> None:
        try:
            Options(**self.options)
        except (TypeError, ValueError) as error:
            known = [field.name for field in dataclasses.fields(Options)]
            raise ValueError(f"{self.id} takes the options {known}: {error}") from error

    @property
    def id(self) -> str:
        return f"maze/{self.name}"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.keywords)

    @property
    def _settings(self) -> Options:
        return Options(**self.options)

    @property
    def observation_space(self) -> Box:
        """Walls and the object, in the window around the agent; all is wall outside the maze."""
        view = self._settings.view
        return Box((view, view, 2), np.dtype(bool), 0.0, 1.0)

    @property
    def action_space(self) -> Discrete:
        return Discrete(len(MOVES))

    def init(self, key: Array) -> tuple[MazeState, TimeStep]:
        return self.start(key, self._settings.first_level, self._settings.num_levels)

    def start(
        self, key: Array, first_level: Array | int, num_levels: Array | int
    ) -> tuple[MazeState, TimeStep]:
        """`init` on other levels than the options say, numbers that may be traced.

        The state remembers them, so a population can differ in them.
        """
        per_env = jnp.zeros(self.num_envs, jnp.uint32)
        no = jnp.zeros(self.num_envs, bool)
        first_level, num_levels = (
            per_env + jnp.asarray(x, jnp.uint32) for x in (first_level, num_levels)
        )
        level = self._draw(key, first_level, num_levels)
        time = jnp.zeros(self.num_envs, jnp.int32)
        state = MazeState(first_level, num_levels, level, level.home, no, time, no)
        reward = jnp.zeros(self.num_envs, jnp.float32)
        return state, TimeStep(self._observe(state), reward, no, no, ~no)

    def step(self, key: Array, state: MazeState, action: Array) -> tuple[MazeState, TimeStep]:
        first, level = state.ended, state.level
        ahead = state.position + jnp.asarray(MOVES)[action]
        blocked = level.walls[jnp.arange(self.num_envs), ahead[:, 0], ahead[:, 1]]
        position = jnp.where(blocked[:, None], state.position, ahead)
        finds = ~state.found & (position == level.object).all(1)
        returns = state.found & (position == level.home).all(1)
        time = state.time + 1
        terminated = returns & ~first
        truncated = (time >= self._settings.max_episode_steps) & ~first & ~terminated

        def restarted(new: Array, old: Array) -> Array:
            return jnp.where(first.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

        new = self._draw(key, state.first_level, state.num_levels)
        stepped = state._replace(
            level=jax.tree.map(restarted, new, level),
            position=restarted(new.home, position),
            found=(state.found | finds) & ~first,
            time=jnp.where(first, 0, time),
            ended=terminated | truncated,
        )
        reward = ((finds | returns) & ~first).astype(jnp.float32)
        return stepped, TimeStep(self._observe(stepped), reward, terminated, truncated, first)

    def spread(self, axis: Axis) -> MazeEnv:
        return dataclasses.replace(self, num_envs=self.num_envs // axis.size, axis=axis)

    def for_evaluation(self, num_envs: int) -> MazeEnv:
        return MazeEnv(self.name, num_envs, self.keywords)

    def for_rendering(self) -> MazeEnv:
        return self.for_evaluation(1)

    def render(self, state: MazeState) -> np.ndarray:
        """The whole maze: home, the object (pale once it was found), the agent and its window."""
        level = jax.tree.map(lambda x: np.asarray(x[0]), state.level)
        position, radius = np.asarray(state.position[0]), self._settings.view // 2
        picture = np.zeros((*level.walls.shape, 5), np.float32)
        picture[..., 0] = level.walls
        rows, columns = (slice(max(0, x - radius), x + radius + 1) for x in position)
        picture[rows, columns, 1] = 0.25
        picture[*level.home, 2] = 1
        picture[*level.object, 3] = 0.5 if state.found[0] else 1
        picture[*position, 4] = 1
        return rendering.draw_grid(picture)

    def _draw(self, key: Array, first_level: Array, num_levels: Array) -> Level:
        """N levels of the set that begins at `first_level`."""
        num_all = self.num_envs * self.axis.size
        drawn = self.axis.shard(jax.random.bits(key, (num_all,), jnp.uint32))
        num_levels = jnp.where(num_levels > 0, num_levels, ALL_LEVELS - first_level)
        build = jax.vmap(lambda number: make_level(number, self._settings.size))
        return build(first_level + drawn % num_levels)

    def _observe(self, state: MazeState) -> Array:
        view = self._settings.view
        margin = view // 2

        def look(walls: Array, thing: Array, position: Array) -> Array:
            around = jax.lax.dynamic_slice(
                jnp.pad(walls, margin, constant_values=True), position, (view, view)
            )
            index = jnp.arange(view) - margin
            row, column = (thing - position)[:, None] == index
            return jnp.stack([around, row[:, None] & column], -1)

        return jax.vmap(look)(state.level.walls, state.level.object, state.position)


def make_level(number: Array | int, size: int) -> Level:
    """The level of that number, of odd `size`; always the same."""
    n = size // 2  # cells of a row: those at odd rows and columns
    key = jax.random.key(number, impl="threefry2x32")  # whatever the default is
    words = -(-n // 32)  # of random bits, for each row of cells
    bits = jax.random.bits(key, (words * n + 3,), jnp.uint32)
    choice = bits[: words * n, None] >> jnp.arange(32, dtype=jnp.uint32)
    choice = choice.reshape(n, -1)[:, :n] % 2 == 1
    corner_bits, home_bits, other_bits = bits[words * n :]
    index = jnp.arange(n)
    top, left = index[:, None] == 0, index == 0
    up = ~top & (choice | left)
    aside = ~left & (~choice | top)
    corner, cell = jnp.zeros((n, n), bool), jnp.ones((n, n), bool)
    blocks = jnp.stack([jnp.stack([corner, up], -1), jnp.stack([aside, cell], -1)], 1)
    walls = jnp.pad(~blocks.reshape(2 * n, 2 * n), (0, 1), constant_values=True)
    # The corner where all ways meet may be any of the four.
    walls = jnp.where(corner_bits % 2 == 0, walls, walls[::-1])
    walls = jnp.where(corner_bits % 4 < 2, walls, walls[:, ::-1])
    home = home_bits % (n * n)
    other = (home + 1 + other_bits % (n * n - 1)) % (n * n)

    def place(cell: Array) -> Array:
        return jnp.stack([2 * (cell // n) + 1, 2 * (cell % n) + 1]).astype(jnp.int32)

    return Level(walls, place(home), place(other))
