"""Pictures to a video file: H.264 in `.mp4`, or an animated `.gif`."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import jax
import numpy as np

from jaxrl.envs.envpool import EnvpoolEnv
from jaxrl.envs.host import callback
from jaxrl.types import Env, HostEnv

CLASSIC_CONTROL_FPS = {
    "CartPole-v1": 50,
    "Pendulum-v1": 30,
    "Acrobot-v1": 15,
    "MountainCar-v0": 30,
    "MountainCarContinuous-v0": 30,
}
"""As Gymnasium plays them."""

_PACKAGES = {".mp4": ("imageio_ffmpeg", "imageio-ffmpeg"), ".gif": ("PIL", "pillow")}
"""The module that writes each suffix, and the distribution it comes in."""


def write_video(frames: Iterable[np.ndarray], path: str | os.PathLike[str], fps: int) -> Path:
    """Write pictures, uint8 RGB `[H, W, 3]` and all of one size, to `path`, and return it.

    The suffix chooses the format. Pictures keep their pixels; for `.mp4` an odd side is made even
    by repeating its last row or column, since its colours are stored at half resolution. `.mp4`
    takes frames from an iterator one by one; `.gif` keeps them in memory, counts time in
    hundredths of a second, and shows equal neighbours as one longer frame.

    The file appears when it is whole: an error or an interrupt leaves what was there before.

    Raises:
      ValueError: for an unknown suffix, no frames, a frame of wrong dtype or shape, or `fps < 1`.
      ImportError: without imageio-ffmpeg for `.mp4`, or pillow for `.gif`.
      OSError: if the file could not be written whole.
    """
    path = Path(path)
    suffix = video_suffix(path)
    if fps < 1:
        raise ValueError(f"fps must be at least 1, got {fps}")
    pictures = _checked(frames)
    first = next(pictures, None)
    if first is None:
        raise ValueError(f"there are no frames to write to {path}")
    write = _write_mp4 if suffix == ".mp4" else _write_gif
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as folder:
        unfinished = Path(folder) / f"video{suffix}"
        write(itertools.chain([first], pictures), first.shape, unfinished, fps)
        unfinished.replace(path)
    return path


def video_suffix(path: Path) -> str:
    """What `write_video` goes by, for those who would know before they have frames.

    Raises:
      ValueError, ImportError: if it cannot write such a file.
    """
    suffix = path.suffix.lower()
    if suffix not in _PACKAGES:
        raise ValueError(f"a video's name ends in .mp4 or .gif, got {path.name!r}")
    _require(*_PACKAGES[suffix])
    return suffix


def check_video(env: Env, path: Path) -> None:
    """Draw `env` once, for those who would train for hours before they film it.

    Raises:
      ValueError, ImportError: if there is no way to draw it, or `write_video` cannot write `path`.
      jax.errors.JaxRuntimeError: if its simulator fails.
    """
    video_suffix(path)
    env = env.for_rendering()
    state, _ = jax.jit(env.init)(jax.random.key(0))
    try:
        env.render(state)
    finally:
        if isinstance(env, HostEnv):
            callback.release(state)


def frames_per_second(env: Env) -> int:
    """The speed at which people watch one step of `env` a frame; 30 where there is no custom.

    Atari runs at 60 pictures a second, of which an environment shows one in `frame_skip`.
    """
    if isinstance(own := getattr(env, "render_fps", None), int):  # as Gymnasium's say
        return own
    name = env.id.rpartition("/")[2]
    if isinstance(env, EnvpoolEnv) and env.is_atari:
        return max(1, round(60 / env.options.get("frame_skip", 4)))
    if name.endswith(("-MinAtar", "-bsuite")) or env.id.startswith("maze/"):
        return 10
    return CLASSIC_CONTROL_FPS.get(name, 30)


def _checked(frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    shape = None
    for index, frame in enumerate(frames):
        frame = np.asarray(frame)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.size == 0:
            raise ValueError(
                f"frames are uint8 pictures [H, W, 3], but frame {index} is "
                f"{frame.dtype} {list(frame.shape)}"
            )
        if shape is not None and frame.shape != shape:
            raise ValueError(
                f"frames have one size, but frame {index} is {list(frame.shape)} "
                f"after {list(shape)}"
            )
        shape = frame.shape
        yield frame


def _require(module: str, distribution: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"writing this video needs {module}: pip install {distribution}"
        ) from error


def _write_mp4(
    pictures: Iterable[np.ndarray], shape: tuple[int, ...], path: Path, fps: int
) -> None:
    from imageio_ffmpeg import get_ffmpeg_exe

    height, width = shape[0] + shape[0] % 2, shape[1] + shape[1] % 2
    padding = ((0, shape[0] % 2), (0, shape[1] % 2), (0, 0))
    source = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {fps} -i -"
    target = "-c:v libx264 -crf 18 -pix_fmt yuv420p -movflags +faststart"
    command = [get_ffmpeg_exe(), "-v", "error", *source.split(), *target.split(), str(path)]
    complaints = path.with_name("complaints.txt")
    # imageio's own writer runs Python in a fork, which can deadlock beside JAX's threads, and it
    # ignores the exit status, so that a full disk would go unnoticed. The new session is for
    # Ctrl-C to reach this process only.
    with (
        complaints.open("wb") as stderr,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=stderr, start_new_session=True
        ) as process,
    ):
        assert process.stdin is not None
        try:
            for picture in pictures:
                process.stdin.write(np.pad(picture, padding, mode="edge").tobytes())
            process.stdin.close()
        except BrokenPipeError:
            pass  # the exit status tells that ffmpeg gave up
    if process.returncode != 0:
        reason = complaints.read_text(errors="replace")[-500:] or f"status {process.returncode}"
        raise OSError(f"ffmpeg could not write the video: {reason}")


def _write_gif(
    pictures: Iterable[np.ndarray], shape: tuple[int, ...], path: Path, fps: int
) -> None:
    del shape
    from PIL import Image

    first, *rest = [Image.fromarray(picture) for picture in pictures]
    # Browsers slow down to a tenth of a second what asks for less than two hundredths.
    milliseconds = 10 * max(2, round(100 / fps))
    first.save(path, save_all=True, append_images=rest, duration=milliseconds, loop=0)
