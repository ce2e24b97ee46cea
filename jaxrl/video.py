"""Pictures to a video file: H.264 in `.mp4`, or an animated `.gif`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.envs.envpool import ATARI_IMPORT_PATH, EnvpoolEnv
from jaxrl.types import Env

SUFFIXES = (".mp4", ".gif")


def write_video(frames: Iterable[np.ndarray], path: str | os.PathLike[str], fps: int) -> Path:
    """Write pictures, uint8 RGB `[H, W, 3]` and all of one size, to `path`, and return it.

    The suffix chooses the format. Pictures keep their pixels; for `.mp4` an odd side is made even
    by repeating its last row or column, since its colours are stored at half resolution. `.mp4`
    takes frames from an iterator one by one; `.gif` keeps them in memory, counts time in
    hundredths of a second, and shows equal neighbours as one longer frame.

    The file appears when it is whole: an error or an interrupt leaves what was there before.

    Raises:
      ValueError: for an unknown suffix, no frames, a frame of wrong dtype or shape, or `fps < 1`.
      ImportError: without the packages of `jaxrl[video]`.
      OSError: if the file could not be written whole.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"a video ends in {' or '.join(SUFFIXES)}, got {path.name!r}")
    if fps < 1:
        raise ValueError(f"fps must be at least 1, got {fps}")
    imageio, ffmpeg = _packages()
    pictures = _checked(frames)
    first = next(pictures, None)
    if first is None:
        raise ValueError(f"no frames to write to {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as folder:
        unfinished = Path(folder) / f"video{suffix}"
        settings = _gif(fps) if suffix == ".gif" else _mp4(fps)
        count = 0
        with imageio.get_writer(unfinished, mode="I", **settings) as writer:
            for picture in _chain(first, pictures):
                writer.append_data(picture if suffix == ".gif" else _even(picture))
                count += 1
        # imageio does not look at ffmpeg's exit status, as when the disk is full.
        if suffix == ".mp4" and ffmpeg.count_frames_and_secs(unfinished)[0] != count:
            raise OSError(f"ffmpeg did not write all {count} frames of {path}")
        unfinished.replace(path)
    return path
