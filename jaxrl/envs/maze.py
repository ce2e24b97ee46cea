"""Find and return: a task for agents with a memory, in a maze seen through a small window.

The agent must step onto an object (reward 1, once) and come back to where it began (reward 1, which
ends the episode). It sees the walls and the object near it, nothing else. The object stays where it
is after it was found, and home looks like any other cell. So the observation shows neither whether
the agent is on its way out or back, nor where home is; the agent must remember both.

The number of a level determines the maze, home and the object. As in Procgen (Cobbe et al. 2020,
arXiv 1912.01588), episodes draw their level from a limited set, so that an agent can be trained on
some levels and tested on others.

Mazes are binary trees: each cell is open to one of two neighbours, the same two for all cells of a
maze, so that exactly one path connects any two cells. All cells are carved at once from one draw of
random bits, which is fast enough for a new maze at every step.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.envs import rendering
from jaxrl.envs.adapter import Adapter, first_timestep, select_envs
from jaxrl.spaces import Box, Discrete
from jaxrl.types import Array, TimeStep

ALL_LEVELS = 2**31 - 1
"""Levels are numbers below this."""
MOVES = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]], np.int32)
"""Rows and columns by which the actions up, right, down and left move."""


@dataclass(frozen=True)
class Options:
    """Keywords of `jaxrl.make("maze/FindAndReturn-v0", num_envs, ...)`."""

    size: int = 9
    """Cells along one side of the maze, walls included; odd."""
    view: int = 5
    """Cells along one side of the window around the agent; odd."""
    max_episode_steps: int = 100
    """Time limit of an episode in steps."""
    num_levels: int = 0
    """Number of levels from which episodes are drawn; 0 for all from `first_level` on."""
    first_level: int = 0
    """The smallest level number from which episodes are drawn."""

    def __post_init__(self) -> None:
        least = {"size": 5, "view": 3, "max_episode_steps": 1, "num_levels": 0, "first_level": 0}
        for name, value in dataclasses.asdict(self).items():
            checks.integer(name, value, least[name])
            if name in ("size", "view") and value % 2 == 0:
                raise ValueError(f"{name} must be odd, got {value}")
        if self.first_level + max(self.num_levels, 1) > ALL_LEVELS:
            raise ValueError(
                f"levels are numbers below {ALL_LEVELS}, got first_level={self.first_level} and "
                f"num_levels={self.num_levels}"
            )


class Level(NamedTuple):
    """A maze and the places in it; leaves `[N, ...]` for N mazes."""

    walls: Array  # [size, size] bool
    home: Array  # [2] int32, row and column
    object: Array  # [2]


class MazeState(NamedTuple):
    """State of N mazes, leaves `[N, ...]`."""

    first_level: Array  # uint32: the smallest level number from which episodes are drawn
    num_levels: Array  # uint32: number of levels from which they are drawn, 0 for all
    level: Level
    position: Array  # [2] int32
    found: Array  # bool: the agent was at the object
    time: Array  # int32: steps taken in the episode
    ended: Array  # bool: the next step begins a new episode


def ids() -> list[str]:
    """Return the only id, without prefix."""
    return ["FindAndReturn-v0"]


@dataclass(frozen=True)
class MazeEnv(Adapter):
    """N mazes; make it with `jaxrl.make("maze/FindAndReturn-v0", num_envs, **Options)`."""

    backend: ClassVar[str] = "maze"

    def __post_init__(self) -> None:
        try:
            Options(**self.options)
        except (TypeError, ValueError) as error:
            known = [field.name for field in dataclasses.fields(Options)]
            raise ValueError(f"{self.id} takes the options {known}: {error}") from error

    @property
    def _settings(self) -> Options:
        return Options(**self.options)

    @property
    def observation_space(self) -> Box:
        """Walls and the object in the window around the agent; outside the maze all is wall."""
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
        """Start N episodes like `init`, but on levels given by numbers that may be traced.

        The state keeps the numbers, so the members of a population can have different levels.
        """
        per_env = jnp.zeros(self.num_envs, jnp.uint32)
        first_level, num_levels = (
            per_env + jnp.asarray(x, jnp.uint32) for x in (first_level, num_levels)
        )
        level = self._draw(key, first_level, num_levels)
        no, time = jnp.zeros(self.num_envs, bool), jnp.zeros(self.num_envs, jnp.int32)
        state = MazeState(first_level, num_levels, level, level.home, no, time, no)
        return state, first_timestep(self._observe(state), self.num_envs)

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

        new = self._draw(key, state.first_level, state.num_levels)
        stepped = state._replace(
            level=select_envs(first, new, level),
            position=select_envs(first, new.home, position),
            found=(state.found | finds) & ~first,
            time=jnp.where(first, 0, time),
            ended=terminated | truncated,
        )
        reward = ((finds | returns) & ~first).astype(jnp.float32)
        return stepped, TimeStep(self._observe(stepped), reward, terminated, truncated, first)

    def render(self, state: MazeState) -> np.ndarray:
        """Draw the whole maze: home, the object (pale once found), the agent and its window."""
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
        """Draw N levels from the set that begins at `first_level`."""
        num_all = self.num_envs * self.axis.size
        drawn = self.axis.shard(jax.random.bits(key, (num_all,), jnp.uint32))
        num_levels = jnp.where(num_levels > 0, num_levels, ALL_LEVELS - first_level)
        build = jax.vmap(lambda number: make_level(number, self._settings.size))
        return build(first_level + drawn % num_levels)

    def _observe(self, state: MazeState) -> Array:
        view = self._settings.view
        margin = view // 2

        def observe(walls: Array, thing: Array, position: Array) -> Array:
            around = jax.lax.dynamic_slice(
                jnp.pad(walls, margin, constant_values=True), position, (view, view)
            )
            index = jnp.arange(view) - margin
            row, column = (thing - position)[:, None] == index
            return jnp.stack([around, row[:, None] & column], -1)

        return jax.vmap(observe)(state.level.walls, state.level.object, state.position)


def make_level(number: Array | int, size: int) -> Level:
    """Build the level of that number, of odd `size`; a number always gives the same level."""
    n = size // 2  # cells of a row, which lie at odd rows and columns
    key = jax.random.key(number, impl="threefry2x32")  # independent of JAX's default generator
    words = -(-n // 32)  # random words for each row of cells
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
    # The root of the tree lies in any of the four corners.
    walls = jnp.where(corner_bits % 2 == 0, walls, walls[::-1])
    walls = jnp.where(corner_bits % 4 < 2, walls, walls[:, ::-1])
    home = home_bits % (n * n)
    other = (home + 1 + other_bits % (n * n - 1)) % (n * n)

    def place(cell: Array) -> Array:
        return jnp.stack([2 * (cell // n) + 1, 2 * (cell % n) + 1]).astype(jnp.int32)

    return Level(walls, place(home), place(other))
