"""Videos of agents: write them as `.mp4` or `.gif`, and their captions beside them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import imageio_ffmpeg
import jax
import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from jaxrl.envs.envpool import EnvpoolEnv
from jaxrl.envs.host import callback
from jaxrl.files import schema
from jaxrl.files.whole import write_whole
from jaxrl.training import evaluate
from jaxrl.training.policy import LoadedPolicy
from jaxrl.types import DrawableEnv, Env

CLASSIC_CONTROL_FPS = {
    "CartPole-v1": 50,
    "Pendulum-v1": 30,
    "Acrobot-v1": 15,
    "MountainCar-v0": 30,
    "MountainCarContinuous-v0": 30,
}
"""Frames per second at which Gymnasium renders each environment."""

_SUFFIXES = (".mp4", ".gif")
MAX_STEPS = 5_000
"""The longest video of one episode, in environment steps."""


class GameNumbers(NamedTuple):
    """Averages over the whole games that an agent played."""

    games: int
    points_per_game: float
    points_per_game_std: float  # standard deviation over the games
    game_length: float  # environment steps
    points_per_step: float


class Film(NamedTuple):
    """A video file, its caption, and the numbers of the agent in it, if they are known."""

    path: Path
    caption: str
    numbers: GameNumbers | None


def write_video(frames: Iterable[np.ndarray], path: str | os.PathLike[str], fps: int) -> Path:
    """Write frames to a video file atomically, and return its path.

    The suffix chooses the format:
    - `.mp4` consumes an iterator frame by frame. H.264 stores colours at half resolution, so an odd
      height or width is made even by repeating the last row or column.
    - `.gif` keeps all frames in memory, rounds durations to hundredths of a second, and merges
      equal neighbouring frames into one longer frame.

    An error or an interrupt leaves an earlier file at `path` unchanged.

    Args:
      frames: uint8 RGB `[H, W, 3]`, all of one size.

    Raises:
      ValueError: for an unknown suffix, no frames, a frame of wrong dtype or shape, or `fps < 1`.
      OSError: if the encoder fails or the disk is full.
    """
    path = Path(path)
    suffix = checked_suffix(path)
    if fps < 1:
        raise ValueError(f"fps must be at least 1, got {fps}")
    pictures = _checked(frames)
    if (first := next(pictures, None)) is None:
        raise ValueError(f"there are no frames to write to {path}")
    write = _write_mp4 if suffix == ".mp4" else _write_gif
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as folder:
        unfinished = Path(folder) / f"video{suffix}"
        write(first, pictures, unfinished, fps)
        unfinished.replace(path)
    return path


def checked_suffix(path: Path) -> str:
    """Return the lower-case suffix of a video file that `write_video` can write.

    Raises:
      ValueError: if the suffix is neither `.mp4` nor `.gif`.
    """
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise ValueError(f"the name of a video must end in .mp4 or .gif, got {path.name!r}")
    return suffix


def film(
    policy: LoadedPolicy,
    path: str | Path,
    seed: int = 0,
    greedy: bool = False,
    max_steps: int = MAX_STEPS,
) -> tuple[Path, float, int]:
    """Write a video of one episode, and return its path, score and length in steps.

    Args:
      policy: what `jaxrl.load_policy` returned, also with a network or an algorithm of your own.
      path: of an `.mp4` or `.gif` file.
      seed: of the environment and the actions.
      greedy: take the most probable actions, not samples.
      max_steps: longest video, in environment steps.

    Raises:
      ValueError: if the environment cannot be drawn.
      ValueError, ImportError, OSError: as `write_video`.
      jax.errors.JaxRuntimeError: if the simulator fails.
    """
    path, undrawn = Path(path), policy.algo.env
    if not all(hasattr(undrawn, name) for name in ("for_rendering", "render")):
        raise ValueError(f"{undrawn!r} cannot be drawn: it lacks for_rendering or render")
    env = undrawn.for_rendering()
    key = jax.random.key(seed)
    scores: list[float] = []  # at each picture

    def pictures() -> Iterator[np.ndarray]:
        for picture, score in evaluate.frames(
            policy.algo, policy.config, policy.state, env, key, greedy, max_steps
        ):
            scores.append(score)
            yield picture

    write_video(pictures(), path, frames_per_second(env))
    return path, scores[-1], len(scores) - 1


def check_video(env: DrawableEnv, path: Path) -> None:
    """Raise if `env` cannot be rendered or `path` cannot be written as a video.

    Call it before hours of training that end with a video. It renders one state.

    Raises:
      ValueError, ImportError: if there is no way to render `env`, or `write_video` refuses `path`.
      jax.errors.JaxRuntimeError: if the simulator fails.
    """
    checked_suffix(path)
    env = env.for_rendering()
    state, _ = jax.jit(env.init)(jax.random.key(0))
    with callback.closing(state):
        env.render(state)


def frames_per_second(env: Env) -> int:
    """Return the customary speed of a video that shows each step of `env` once; 30 by default.

    Atari runs at 60 frames per second, and an environment shows one in `frame_skip` of them.
    """
    if isinstance(own := getattr(env, "render_fps", None), int):  # Gymnasium declares it
        return own
    name = env.id.rpartition("/")[2]
    if isinstance(env, EnvpoolEnv) and env.is_atari:
        return max(1, round(60 / env.options.get("frame_skip", 4)))
    if name.endswith(("-MinAtar", "-bsuite")) or env.id.startswith("maze/"):
        return 10
    return CLASSIC_CONTROL_FPS.get(name, 30)


def summarize_games(returns: ArrayLike, lengths: ArrayLike) -> GameNumbers:
    """Return the averages over whole games; games that were cut short are NaN and left out.

    Args:
      returns, lengths: `[num_games]`, as `jaxrl.evaluate` returns them.

    Raises:
      ValueError: if no game was finished.
    """
    returns, lengths = np.asarray(returns, float), np.asarray(lengths, float)
    is_whole = np.isfinite(returns)
    returns, lengths = returns[is_whole], lengths[is_whole]
    if not returns.size:
        raise ValueError("no game came to its end, so there are no numbers; play for more steps")
    return GameNumbers(
        games=len(returns),
        points_per_game=float(returns.mean()),
        points_per_game_std=float(returns.std()),
        game_length=float(lengths.mean()),
        points_per_step=float(returns.sum() / lengths.sum()),
    )


def write_caption(video: Path, caption: str, numbers: GameNumbers | None = None) -> Path:
    """Write what pages show below a video, as JSON beside it, and return the JSON file's path."""
    path = _caption_of(video)
    content = {"caption": caption, "numbers": numbers and numbers._asdict()}
    write_whole(path, json.dumps(content, indent=1) + "\n")
    return path


def _caption_of(video: Path) -> Path:
    """Return the file of a video's caption; films of other formats have captions of their own."""
    return video.with_name(f"{video.name}.json")


def videos_in(folder: Path) -> list[Film]:
    """Return the `.mp4` and `.gif` files of a folder with their captions, in the captions' order.

    Numbers within captions are ordered by value: gamma 0.9, gamma 0.99, gamma 0.999. A video
    without a caption has its file name for one.
    """
    paths = sorted(path for suffix in _SUFFIXES for path in folder.glob(f"*{suffix}"))
    return sorted((_film(path) for path in paths), key=lambda film: _natural_order(film.caption))


def _film(path: Path) -> Film:
    try:
        content = schema.read(_caption_of(path), schema.CAPTION)
    except (FileNotFoundError, ValueError):
        return Film(path, path.name, None)
    numbers = content.get("numbers")
    own = numbers and GameNumbers(*(numbers[name] for name in GameNumbers._fields))
    return Film(path, content["caption"], own)


def _natural_order(text: str) -> list[str | float]:
    """Return words and numbers by turns, so that numbers are compared by value."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text)
    return [float(part) if index % 2 else part for index, part in enumerate(parts)]


def _checked(frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the frames; raise at the first of a wrong dtype, shape or size."""
    shape = None
    for index, frame in enumerate(frames):
        frame = np.asarray(frame)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.size == 0:
            raise ValueError(
                f"frames must be uint8 [H, W, 3], but frame {index} is "
                f"{frame.dtype} {list(frame.shape)}"
            )
        if shape is not None and frame.shape != shape:
            raise ValueError(
                f"frames must have one size, but frame {index} is {list(frame.shape)} "
                f"after {list(shape)}"
            )
        shape = frame.shape
        yield frame


def _write_mp4(first: np.ndarray, others: Iterable[np.ndarray], path: Path, fps: int) -> None:
    height, width = first.shape[0] + first.shape[0] % 2, first.shape[1] + first.shape[1] % 2
    padding = ((0, height - first.shape[0]), (0, width - first.shape[1]), (0, 0))
    ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
    source = f"-v error -f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {fps} -i -"
    target = "-c:v libx264 -crf 18 -pix_fmt yuv420p -movflags +faststart"
    command = [ffmpeg, *source.split(), *target.split(), str(path)]
    error_log = path.with_name("errors.txt")
    # imageio's own writer forks Python, which can deadlock beside JAX's threads, and ignores the
    # exit status, so a full disk would go unnoticed. The new session keeps Ctrl-C from ffmpeg, so
    # that only this process handles it.
    with (
        error_log.open("wb") as stderr,
        contextlib.suppress(BrokenPipeError),  # ffmpeg gave up; its exit status is checked below
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=stderr, start_new_session=True
        ) as process,
    ):
        assert process.stdin is not None
        for picture in itertools.chain([first], others):
            process.stdin.write(np.pad(picture, padding, mode="edge").tobytes())
    if process.returncode != 0:
        reason = error_log.read_text(errors="replace")[-500:] or f"status {process.returncode}"
        raise OSError(f"ffmpeg could not write the video: {reason}")


def _write_gif(first: np.ndarray, others: Iterable[np.ndarray], path: Path, fps: int) -> None:
    images = [Image.fromarray(picture) for picture in (first, *others)]
    # Browsers show frames shorter than two hundredths of a second for a tenth of a second.
    milliseconds = 10 * max(2, round(100 / fps))
    images[0].save(path, save_all=True, append_images=images[1:], duration=milliseconds, loop=0)
