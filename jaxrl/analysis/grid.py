"""Several videos in one: tiles side by side, each with words below it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from jaxrl.envs.rendering import CHALK, INK

TILE_WIDTH = 320
_FONT_SIZE, _LINE, _MARGIN = 14, 18, 8


class Tile(NamedTuple):
    """A video's lines of caption, and its pictures `[H, W, 3]`, each with one more line."""

    caption: Sequence[str]
    frames: Iterable[tuple[np.ndarray, str]]


def grid(tiles: Sequence[Tile], columns: int | None = None) -> Iterator[np.ndarray]:
    """Frames of all tiles at once, uint8 `[H, W, 3]`; a tile that has ended holds its last.

    Pictures are resized to `TILE_WIDTH`. By default there are as many columns as rows or one more.

    Raises:
      ValueError: if there are no tiles, or less than one column.
    """
    if not tiles:
        raise ValueError("there are no videos to show side by side")
    columns = math.ceil(math.sqrt(len(tiles))) if columns is None else columns
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    captions = [[line for text in tile.caption for line in _wrapped(text)] for tile in tiles]
    streams = [iter(tile.frames) for tile in tiles]
    pictures = [(_resized(picture), line) for picture, line in map(next, streams)]
    # All tiles have room for the tallest picture and the longest caption.
    room = max(picture.height for picture, _ in pictures)
    height = room + (max(map(len, captions)) + 1) * _LINE + 3 * _MARGIN
    drawn = [
        _drawn(picture, [*caption, line], room, height)
        for caption, (picture, line) in zip(captions, pictures, strict=True)
    ]
    yield _assembled(drawn, columns)
    while any(frames := [next(stream, None) for stream in streams]):
        drawn = [
            old if frame is None else _drawn(_resized(frame[0]), [*caption, frame[1]], room, height)
            for old, caption, frame in zip(drawn, captions, frames, strict=True)
        ]
        yield _assembled(drawn, columns)


def _resized(picture: np.ndarray) -> Image.Image:
    height, width, _ = picture.shape
    size = (TILE_WIDTH, round(height * TILE_WIDTH / width))
    is_whole = TILE_WIDTH % width == 0  # then pixels stay sharp
    resampling = Image.Resampling.NEAREST if is_whole else Image.Resampling.LANCZOS
    return Image.fromarray(picture).resize(size, resampling)


def _drawn(picture: Image.Image, lines: Sequence[str], room: int, height: int) -> np.ndarray:
    tile = Image.new("RGB", (TILE_WIDTH + 2 * _MARGIN, height), INK)
    tile.paste(picture, (_MARGIN, _MARGIN + (room - picture.height) // 2))
    draw = ImageDraw.Draw(tile)
    for number, line in enumerate(lines):
        draw.text((_MARGIN, room + 2 * _MARGIN + number * _LINE), line, CHALK, _font())
    return np.asarray(tile)


def _assembled(drawn: Sequence[np.ndarray], columns: int) -> np.ndarray:
    height, width, _ = drawn[0].shape
    rows = math.ceil(len(drawn) / columns)
    whole = np.full((rows * height, min(columns, len(drawn)) * width, 3), INK, np.uint8)
    for number, tile in enumerate(drawn):
        top, left = number // columns * height, number % columns * width
        whole[top : top + height, left : left + width] = tile
    return whole


def _wrapped(text: str) -> list[str]:
    """Lines that fit below a tile."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if _font().getlength(longer) <= TILE_WIDTH:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_FONT_SIZE)
