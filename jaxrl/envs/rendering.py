"""Pictures of gymnax states and mazes, drawn with Pillow.

An environment observed as a grid (MinAtar, Catch, ...) is drawn from its observation: a square for
each cell, a colour for each channel. Classic control is drawn on a `Canvas` in the environment's
own units, several times as large as the picture, and scaled down, which smooths the edges.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from PIL import Image, ImageDraw

from jaxrl.types import PyTree

CELL = 16
"""Pixels of a grid's cell, the gap to the next cell included."""
SCALE = 3
"""Size of the canvas relative to the picture."""

INK, NIGHT, SLATE, CHALK = (8, 12, 24), (15, 23, 42), (51, 65, 85), (241, 245, 249)
CORAL, AMBER, SKY, MINT = (255, 92, 122), (255, 200, 40), (56, 176, 255), (40, 222, 150)
VIOLET, ORANGE, LIME = (160, 120, 255), (249, 115, 22), (190, 242, 60)
PINK, BROWN = (240, 110, 240), (148, 112, 80)
CHANNELS = (CHALK, CORAL, SKY, AMBER, MINT, VIOLET, ORANGE, LIME, PINK, BROWN)

Point = tuple[float, float]
Colour = tuple[int, int, int]


def draw(name: str, state: PyTree, env: Any, params: Any) -> np.ndarray:
    """Draw one state of gymnax's environment `name`, without a batch axis; uint8 `[H, W, 3]`.

    Raises:
      ValueError: if there is no way to draw this environment.
    """
    if name in SCENES:
        return SCENES[name](state, params)
    if len(getattr(env.observation_space(params), "shape", ())) not in (2, 3):
        raise ValueError(
            f"gymnax/{name} cannot be drawn; pictures exist for {', '.join(SCENES)}, and for "
            "environments observed as a grid (the MinAtar games, Catch-bsuite, DeepSea-bsuite, "
            "Pong-misc, ...)"
        )
    return draw_grid(np.asarray(_jit_observation(env)(state, params)))


@functools.lru_cache(maxsize=16)
def _jit_observation(env: Any) -> Callable[[PyTree, PyTree], jax.Array]:
    return jax.jit(env.get_obs)  # ten times faster for a game such as Freeway


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


class Canvas:
    """A picture of a world whose y axis points up.

    Positions and lengths are in the world's units, widths and radii in pixels.

    Args:
      size: width and height of the picture in pixels.
      unit: pixels of one unit of the world.
      origin: the pixel of the world's (0, 0), counted from the bottom left.
    """

    def __init__(self, size: tuple[int, int], unit: float, origin: Point):
        self.pixel = 1 / unit
        self._size, self._unit, self._origin = size, unit, origin
        self._image = Image.new("RGB", (size[0] * SCALE, size[1] * SCALE), NIGHT)
        self._draw = ImageDraw.Draw(self._image)

    def polygon(self, points: list[Point], colour: Colour) -> None:
        self._draw.polygon([self._place(point) for point in points], colour)

    def disc(self, centre: Point, radius: float, colour: Colour) -> None:
        self._draw.circle(self._place(centre), radius * SCALE - 0.5, colour)  # Pillow adds 0.5

    def line(self, start: Point, end: Point, width: float, colour: Colour) -> None:
        """Draw a straight line with round ends."""
        self._draw.line([self._place(start), self._place(end)], colour, round(width * SCALE))
        for point in (start, end):
            self.disc(point, width / 2, colour)

    def box(self, centre: Point, size: Point, colour: Colour, corner: float = 0) -> None:
        """Draw a rectangle of `size` pixels whose corners have the radius `corner`."""
        x, y = self._place(centre)
        right, down = size[0] * SCALE / 2, size[1] * SCALE / 2
        edges = (x - right, y - down, x + right - 1, y + down - 1)
        self._draw.rounded_rectangle(edges, corner * SCALE, colour)

    def arc(self, radius: float, angle: float, width: float, colour: Colour) -> None:
        """Draw an arc around (0, 0) from the top by `angle`, counterclockwise if positive."""
        x, y = self._place((0, 0))
        reach = (radius + width / 2) * SCALE
        start, end = sorted((-90.0, -90.0 - math.degrees(angle)))
        edges = (x - reach, y - reach, x + reach, y + reach)
        self._draw.arc(edges, start, end, colour, round(width * SCALE))

    def picture(self) -> np.ndarray:
        """Return the picture, uint8 `[H, W, 3]`."""
        return np.asarray(self._image.resize(self._size, Image.Resampling.BOX))

    def _place(self, point: Point) -> Point:
        x = self._origin[0] + point[0] * self._unit
        y = self._size[1] - self._origin[1] - point[1] * self._unit
        return x * SCALE, y * SCALE


def _cartpole(state: Any, params: Any) -> np.ndarray:
    canvas = Canvas((600, 400), 600 / (2 * params.x_threshold), (300, 100))
    x, angle = float(state.x), float(state.theta)
    axle = (x, 10 * canvas.pixel)
    length = 2 * params.length  # `params.length` is half the pole, as in Gymnasium
    tip = (x + length * math.sin(angle), axle[1] + length * math.cos(angle))
    canvas.box((0, 0), (1200, 3), SLATE)
    canvas.box((x, 0), (60, 34), SKY, corner=6)
    canvas.line(axle, tip, 11, AMBER)
    canvas.disc(axle, 4, NIGHT)
    return canvas.picture()


def _pendulum(state: Any, params: Any) -> np.ndarray:
    canvas = Canvas((500, 500), 200 / params.l, (250, 250))
    angle, torque = float(state.theta), float(np.ravel(state.last_u)[0])
    canvas.disc((0, 0), 61, SLATE)
    canvas.disc((0, 0), 59, NIGHT)
    canvas.arc(60, math.pi * min(max(torque / params.max_torque, -1), 1), 8, SKY)
    canvas.line((0, 0), (-params.l * math.sin(angle), params.l * math.cos(angle)), 32, CORAL)
    canvas.disc((0, 0), 8, NIGHT)
    return canvas.picture()


def _acrobot(state: Any, params: Any) -> np.ndarray:
    upper, lower = params.link_length_1, params.link_length_2
    canvas = Canvas((500, 500), 230 / (upper + lower), (250, 250))
    first = float(state.joint_angle1)
    both = first + float(state.joint_angle2)
    elbow = (upper * math.sin(first), -upper * math.cos(first))
    tip = (elbow[0] + lower * math.sin(both), elbow[1] - lower * math.cos(both))
    canvas.box((0, 1), (1000, 2), MINT)
    canvas.line((0, 0), elbow, 20, SKY)
    canvas.line(elbow, tip, 20, AMBER)
    for joint in ((0, 0), elbow):
        canvas.disc(joint, 5, NIGHT)
    return canvas.picture()


def _mountain_car(state: Any, params: Any) -> np.ndarray:
    width = params.max_position - params.min_position
    canvas = Canvas((600, 400), 600 / width, (-600 * params.min_position / width, 0))

    def height(x: float) -> float:
        return 0.45 * math.sin(3 * x) + 0.55  # the dynamics pull by its slope, cos(3 x)

    def on_slope(x: float, along: float, above: float) -> Point:
        """Return the point so many pixels along the slope and above it, from the hill at `x`."""
        slope = math.atan(1.35 * math.cos(3 * x))
        sin, cos = math.sin(slope) * canvas.pixel, math.cos(slope) * canvas.pixel
        return x + along * cos - above * sin, height(x) + along * sin + above * cos

    x, goal = float(state.position), float(params.goal_position)
    foot, top = (goal, height(goal)), (goal, height(goal) + 50 * canvas.pixel)
    canvas.line(foot, top, 3, CHALK)
    canvas.box((goal + 13 * canvas.pixel, top[1] - 8 * canvas.pixel), (26, 16), MINT)
    hill = [(x, height(x)) for x in np.linspace(params.min_position, params.max_position, 151)]
    canvas.polygon([*hill, (params.max_position, 0.0), (params.min_position, 0.0)], SLATE)
    canvas.line(on_slope(x, -14, 17), on_slope(x, 14, 17), 18, CORAL)
    for side in (-13, 13):
        canvas.disc(on_slope(x, side, 7), 7, CHALK)
    return canvas.picture()


SCENES: dict[str, Callable[[Any, Any], np.ndarray]] = {
    "CartPole-v1": _cartpole,
    "Pendulum-v1": _pendulum,
    "Acrobot-v1": _acrobot,
    "MountainCar-v0": _mountain_car,
    "MountainCarContinuous-v0": _mountain_car,
}
"""By id: the function that draws a state, given the state and gymnax's parameters."""
