"""Pictures of gymnax states, drawn with NumPy alone.

Two ways. An environment observed as a grid (MinAtar, Catch, ...) is drawn from its observation: a
square for each cell, a colour for each channel. Classic control is a *scene*: a list of shapes in
the environment's own units, each a field of signed distances from the pixels to its edge, negative
inside. A pixel within half a pixel of an edge is mixed, so edges are smooth.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.types import PyTree

CELL = 16  # pixels of a grid's cell, the gap to the next cell included

INK, NIGHT, SLATE, CHALK = (8, 12, 24), (15, 23, 42), (51, 65, 85), (241, 245, 249)
CORAL, AMBER, SKY, MINT = (255, 92, 122), (255, 200, 40), (56, 176, 255), (40, 222, 150)

VIOLET, ORANGE, LIME = (160, 120, 255), (249, 115, 22), (190, 242, 60)
PINK, BROWN = (240, 110, 240), (148, 112, 80)
CHANNELS = (CHALK, CORAL, SKY, AMBER, MINT, VIOLET, ORANGE, LIME, PINK, BROWN)


def draw(name: str, state: PyTree, backend: tuple[Any, Any]) -> np.ndarray:
    """One state of the gymnax environment `name` as an RGB picture, uint8 `[H, W, 3]`.

    Args:
      name: the id, without prefix.
      state: its state, with NumPy leaves and without a batch axis.
      backend: gymnax's environment and parameters.

    Raises:
      ValueError: if there is no way to draw this environment.
    """
    env, params = backend
    if name in _SCENES:
        return _SCENES[name](state, params)
    shape = getattr(env.observation_space(params), "shape", ())
    if len(shape) not in (2, 3):
        raise ValueError(
            f"there is no picture of gymnax/{name}; what can be drawn is {', '.join(_SCENES)}, and "
            "whatever is observed as a grid (the MinAtar games, Catch-bsuite, DeepSea-bsuite, "
            "Pong-misc, ...)"
        )
    return draw_grid(np.asarray(_observer(env)(state, params)))


@functools.lru_cache(maxsize=16)
def _observer(env: Any) -> Callable[[PyTree, PyTree], jax.Array]:
    """Compiled, or a game such as Freeway takes ten times longer to observe than to draw."""
    return jax.jit(env.get_obs)


def draw_grid(grid: np.ndarray) -> np.ndarray:
    """Draw `[rows, columns]` or `[rows, columns, channels]` numbers between 0 and 1.

    Later channels lie over earlier ones.
    """
    layers = grid[..., None] if grid.ndim == 2 else grid
    cells = np.full((*grid.shape[:2], 3), NIGHT, np.float32)
    for channel, strength in enumerate(np.moveaxis(layers, -1, 0)):
        opacity = np.clip(strength, 0, 1).astype(np.float32)[..., None]
        cells += opacity * (np.array(CHANNELS[channel % len(CHANNELS)]) - cells)
    picture = np.repeat(np.repeat(cells, CELL, axis=0), CELL, axis=1)
    picture[CELL - 1 :: CELL] = picture[:, CELL - 1 :: CELL] = INK
    return picture.round().astype(np.uint8)


# --- shapes --------------------------------------------------------------------------------------

Point = tuple[float, float]
Colour = tuple[int, int, int]


class Plane(NamedTuple):
    """Where the pixels lie in the world; y points up."""

    x: np.ndarray  # [W], ascending
    y: np.ndarray  # [H], descending
    scale: float  # pixels in a unit


class Shape(NamedTuple):
    """Signed distances to its edge, and the rectangle of the world that it lies in."""

    distances: Callable[[np.ndarray, np.ndarray], np.ndarray]  # of x [1, W] and y [H, 1]
    low: Point
    high: Point


def _plane(width: int, height: int, scale: float, origin: Point) -> Plane:
    """`origin` is the pixel, counted from the bottom left, of the world's (0, 0)."""
    x = (np.arange(width, dtype=np.float32) + 0.5 - origin[0]) / scale
    y = (height - 0.5 - np.arange(height, dtype=np.float32) - origin[1]) / scale
    return Plane(x, y, scale)


def _around(centre: Point, right: float, up: float) -> tuple[Point, Point]:
    """The corners of a rectangle that reaches so far from its centre."""
    return (centre[0] - right, centre[1] - up), (centre[0] + right, centre[1] + up)


def _disc(centre: Point, radius: float) -> Shape:
    return Shape(
        lambda x, y: np.hypot(x - centre[0], y - centre[1]) - radius,
        *_around(centre, radius, radius),
    )


def _line(start: Point, end: Point, width: float) -> Shape:
    """A straight line with round ends."""
    dx, dy = end[0] - start[0], end[1] - start[1]

    def distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = x - start[0], y - start[1]
        along = np.clip((x * dx + y * dy) / max(dx * dx + dy * dy, 1e-12), 0, 1)
        return np.hypot(x - along * dx, y - along * dy) - width / 2

    middle = (start[0] + dx / 2, start[1] + dy / 2)
    return Shape(distances, *_around(middle, (abs(dx) + width) / 2, (abs(dy) + width) / 2))


def _box(centre: Point, size: Point, corner: float) -> Shape:
    """A rectangle whose corners have the radius `corner`."""

    def distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x = np.abs(x - centre[0]) - size[0] / 2 + corner
        y = np.abs(y - centre[1]) - size[1] / 2 + corner
        outside = np.hypot(np.maximum(x, 0), np.maximum(y, 0))
        return outside + np.minimum(np.maximum(x, y), 0) - corner

    return Shape(distances, *_around(centre, size[0] / 2, size[1] / 2))


def _arc(radius: float, angle: float, width: float) -> Shape:
    """Around (0, 0) from the top by `angle`, counterclockwise if positive."""

    def distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        reached = np.arctan2(-x, y) * math.copysign(1, angle)
        ring = np.abs(np.hypot(x, y) - radius) - width / 2
        return np.where((reached >= 0) & (reached <= abs(angle)), ring, np.inf)

    reach = radius + width / 2
    return Shape(distances, *_around((0, 0), reach, reach))


def _paint(plane: Plane, shapes: Sequence[tuple[Shape, Colour]]) -> np.ndarray:
    """Later shapes lie over earlier ones."""
    picture = np.full((plane.y.size, plane.x.size, 3), NIGHT, np.uint8)
    edge = 1 / plane.scale
    for shape, colour in shapes:
        (left, bottom), (right, top) = shape.low, shape.high
        columns = slice(*np.searchsorted(plane.x, (left - edge, right + edge)))
        rows = slice(*np.searchsorted(-plane.y, (-top - edge, -bottom + edge)))
        distances = shape.distances(plane.x[None, columns], plane.y[rows, None])
        opacity = np.clip(0.5 - distances * plane.scale, 0, 1)[..., None]
        below = picture[rows, columns]
        picture[rows, columns] = (below + opacity * (np.array(colour) - below)).round()
    return picture


# --- scenes --------------------------------------------------------------------------------------


def _cartpole(state: Any, params: Any) -> np.ndarray:
    plane = _plane(600, 400, 600 / (2 * params.x_threshold), (300, 100))
    pixel = 1 / plane.scale
    x, angle = float(state.x), float(state.theta)
    length, axle = 2 * params.length, (x, 10 * pixel)  # gymnax, as Gymnasium, gives half the pole
    tip = (x + length * math.sin(angle), axle[1] + length * math.cos(angle))
    shapes = [
        (_box((0, 0), (4 * params.x_threshold, 3 * pixel), 0), SLATE),
        (_box((x, 0), (60 * pixel, 34 * pixel), 6 * pixel), SKY),
        (_line(axle, tip, 11 * pixel), AMBER),
        (_disc(axle, 4 * pixel), NIGHT),
    ]
    return _paint(plane, shapes)


def _pendulum(state: Any, params: Any) -> np.ndarray:
    plane = _plane(500, 500, 200 / params.l, (250, 250))
    angle, torque = float(state.theta), float(np.ravel(state.last_u)[0])
    tip = (-params.l * math.sin(angle), params.l * math.cos(angle))
    turn = math.pi * min(max(torque / params.max_torque, -1), 1)
    pixel = 1 / plane.scale
    shapes = [
        (_disc((0, 0), 61 * pixel), SLATE),
        (_disc((0, 0), 59 * pixel), NIGHT),
        (_arc(60 * pixel, turn, 8 * pixel), SKY),
        (_line((0, 0), tip, 32 * pixel), CORAL),
        (_disc((0, 0), 8 * pixel), NIGHT),
    ]
    return _paint(plane, shapes)


def _acrobot(state: Any, params: Any) -> np.ndarray:
    plane = _plane(500, 500, 230 / (params.link_length_1 + params.link_length_2), (250, 250))
    upper, lower, pixel = params.link_length_1, params.link_length_2, 1 / plane.scale
    first = float(state.joint_angle1)
    both = first + float(state.joint_angle2)
    elbow = (upper * math.sin(first), -upper * math.cos(first))
    tip = (elbow[0] + lower * math.sin(both), elbow[1] - lower * math.cos(both))
    shapes = [
        (_box((0, 1), (99, 2 * pixel), 0), MINT),
        (_line((0, 0), elbow, 20 * pixel), SKY),
        (_line(elbow, tip, 20 * pixel), AMBER),
        *((_disc(joint, 5 * pixel), NIGHT) for joint in ((0, 0), elbow)),
    ]
    return _paint(plane, shapes)


def _mountain_car(state: Any, params: Any) -> np.ndarray:
    width = params.max_position - params.min_position
    plane = _plane(600, 400, 600 / width, (-600 * params.min_position / width, 0))
    pixel = 1 / plane.scale

    def height(x: Any) -> Any:
        return 0.45 * np.sin(3 * x) + 0.55  # as the dynamics have it: gravity pulls by cos(3 x)

    def on_slope(x: float, along: float, above: float) -> Point:
        """From the hill's point at `x`, so many pixels along the slope and above it."""
        slope = math.atan(1.35 * math.cos(3 * x))
        sin, cos = math.sin(slope) * pixel, math.cos(slope) * pixel
        return x + along * cos - above * sin, float(height(x)) + along * sin + above * cos

    x, goal = float(state.position), float(params.goal_position)
    foot, top = on_slope(goal, 0, 0), (goal, float(height(goal)) + 50 * pixel)
    hill = Shape(
        lambda x, y: (y - height(x)) / np.hypot(1, 1.35 * np.cos(3 * x)),
        (-math.inf, -math.inf),
        (math.inf, 1),
    )
    shapes = [
        (_line(foot, top, 3 * pixel), CHALK),
        (_box((goal + 13 * pixel, top[1] - 8 * pixel), (26 * pixel, 16 * pixel), 0), MINT),
        (hill, SLATE),
        (_line(on_slope(x, -14, 17), on_slope(x, 14, 17), 18 * pixel), CORAL),
        *((_disc(on_slope(x, side, 7), 7 * pixel), CHALK) for side in (-13, 13)),
    ]
    return _paint(plane, shapes)


_SCENES: dict[str, Callable[[Any, Any], np.ndarray]] = {
    "CartPole-v1": _cartpole,
    "Pendulum-v1": _pendulum,
    "Acrobot-v1": _acrobot,
    "MountainCar-v0": _mountain_car,
    "MountainCarContinuous-v0": _mountain_car,
}
