"""Videos read back as they were written, with their captions; half a video is never left."""

import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from simulators import Counting

import jaxrl
from jaxrl.analysis.video import (
    GameNumbers,
    check_video,
    film,
    frames_per_second,
    summarize_games,
    videos_in,
    write_caption,
    write_video,
)
from jaxrl.envs.host import callback

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
Image = pytest.importorskip("PIL.Image")
ImageSequence = pytest.importorskip("PIL.ImageSequence")


def moving_square(count, height=64, width=48):
    frames = np.zeros((count, height, width, 3), np.uint8)
    for index, frame in enumerate(frames):
        frame[10:30, 2 * index : 2 * index + 20] = (255, 160, 0)
    return frames


def read_mp4(path):
    """Return ffmpeg's description of the video, and its frames `[T, H, W, 3]`."""
    ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    answer = subprocess.run([ffmpeg, "-i", path, *raw], capture_output=True, check=True)
    facts = next(line for line in answer.stderr.decode().splitlines() if "Video: h264" in line)
    width, height = map(int, re.findall(r", (\d+)x(\d+)", facts)[0])
    return facts, np.frombuffer(answer.stdout, np.uint8).reshape(-1, height, width, 3)


@pytest.mark.parametrize(("count", "height", "width"), [(12, 160, 160), (12, 75, 51), (1, 5, 1)])
def test_mp4_reads_back_with_odd_sides_made_even(tmp_path, count, height, width):
    frames = moving_square(count, height, width)
    path = write_video(frames, tmp_path / "new" / "folder" / "a.mp4", fps=15)
    assert path == tmp_path / "new" / "folder" / "a.mp4"
    facts, shown = read_mp4(path)
    assert "yuv420p" in facts
    assert " 15 fps" in facts
    assert shown.shape == (count, height + height % 2, width + width % 2, 3)
    # Colours are stored at half resolution, so single pixels at edges differ much.
    assert np.abs(shown[:, :height, :width].astype(int) - frames).mean() < 3


def test_gif_reads_back(tmp_path):
    frames = moving_square(12, 75, 51)
    with Image.open(write_video(iter(frames), str(tmp_path / "a.GIF"), fps=10)) as image:
        shown = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
        assert image.info["duration"] == 100
    np.testing.assert_array_equal(shown, frames)


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_an_interrupt_leaves_the_earlier_file(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_text("before")

    def interrupted():
        yield from moving_square(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_video(interrupted(), path, fps=10)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_encoder_is_an_error(tmp_path, monkeypatch):
    # Python, too, ends with an error when it is given ffmpeg's arguments.
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: sys.executable)
    with pytest.raises(OSError, match="ffmpeg could not write the video"):
        write_video(moving_square(100), tmp_path / "a.mp4", fps=10)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("height", [4, 84, 500])
def test_a_film_that_ends_early_has_the_reason_of_ffmpeg(tmp_path, monkeypatch, height):
    ffmpeg = tmp_path / "ffmpeg"
    ffmpeg.write_text("#!/bin/sh\nhead -c 30000 >/dev/null\necho no room >&2\nexit 1\n")
    ffmpeg.chmod(0o755)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(ffmpeg))
    frames = np.zeros((50, height, height, 3), np.uint8)
    with pytest.raises(OSError, match="could not write the video: no room"):
        write_video(frames, tmp_path / "a.mp4", fps=10)


@pytest.mark.parametrize(
    ("name", "shapes", "dtype", "message"),
    [
        ("a.mp4", [], np.uint8, "no frames"),
        ("a.mp4", [(8, 8, 3)], np.float32, r"frame 0 is float32 \[8, 8, 3\]"),
        ("a.mp4", [(8, 8, 4)], np.uint8, r"frame 0 is uint8 \[8, 8, 4\]"),
        ("a.mp4", [(0, 8, 3)], np.uint8, r"frame 0 is uint8 \[0, 8, 3\]"),
        ("a.mp4", [(8, 8, 3), (8, 10, 3)], np.uint8, r"1 is \[8, 10, 3\] after \[8, 8, 3\]"),
        ("a.gif", [(8, 8, 3), (8, 10, 3)], np.uint8, r"1 is \[8, 10, 3\] after \[8, 8, 3\]"),
        ("a.avi", [(8, 8, 3)], np.uint8, r"must end in \.mp4 or \.gif, got 'a.avi'"),
        (".mp4", [(8, 8, 3)], np.uint8, r"must end in \.mp4 or \.gif"),
    ],
)
def test_wrong_frames_and_names_are_refused(tmp_path, name, shapes, dtype, message):
    with pytest.raises(ValueError, match=message):
        write_video([np.zeros(shape, dtype) for shape in shapes], tmp_path / name, fps=10)
    assert not list(tmp_path.iterdir())


def test_a_speed_below_one_frame_a_second_is_refused(tmp_path):
    with pytest.raises(ValueError, match="fps must be at least 1, got 0"):
        write_video(moving_square(1), tmp_path / "a.mp4", fps=0)


@pytest.mark.parametrize(
    ("id", "options", "fps"),
    [
        ("gymnax/CartPole-v1", {}, 50),
        ("gymnax/Breakout-MinAtar", {}, 10),
        ("gymnax/Pong-misc", {}, 30),
        ("maze/FindAndReturn-v0", {}, 10),
        ("envpool/Pong-v5", {}, 15),
        ("envpool/Pong-v5", {"frame_skip": 2}, 30),
        ("envpool/gfootball/academy_empty_goal_close-v1", {}, 30),
        ("gymnasium/ALE/Pong-v5", {}, 15),
        ("gymnasium/CartPole-v1", {}, 50),
    ],
)
def test_frames_per_second_are_those_that_people_expect(id, options, fps):
    if id.startswith("envpool/"):
        pytest.importorskip("envpool")
    assert frames_per_second(jaxrl.make(id, 1, **options)) == fps


def test_check_video_renders_once_and_frees_the_simulator(tmp_path):
    before = set(callback._groups)
    check_video(jaxrl.make(Counting, 2), tmp_path / "a.mp4")
    assert not set(callback._groups) - before
    with pytest.raises(ValueError, match=r"must end in .mp4 or .gif"):
        check_video(jaxrl.make("CartPole-v1", 2), tmp_path / "a.avi")


def test_videos_have_their_captions_and_are_ordered_by_them(tmp_path):
    numbers = GameNumbers(4, 7.5, 0.5, 100.0, 0.075)
    captions = {"c.mp4": "gamma 0.999", "a.gif": "gamma 0.99", "b.mp4": "gamma 0.9"}
    for name, caption in captions.items():
        (tmp_path / name).touch()
        write_caption(tmp_path / name, caption, numbers if name == "a.gif" else None)
    for name in ("trial-10.mp4", "trial-9.mp4", "a.txt"):
        (tmp_path / name).touch()
    (tmp_path / "trial-9.mp4.json").write_text("[]")  # no caption
    assert [(film.path.name, film.caption, film.numbers) for film in videos_in(tmp_path)] == [
        ("b.mp4", "gamma 0.9", None),
        ("a.gif", "gamma 0.99", numbers),
        ("c.mp4", "gamma 0.999", None),
        ("trial-9.mp4", "trial-9.mp4", None),
        ("trial-10.mp4", "trial-10.mp4", None),
    ]


def test_films_of_two_formats_have_captions_of_their_own(tmp_path):
    for name in ("seed0.mp4", "seed0.gif"):
        (tmp_path / name).touch()
        write_caption(tmp_path / name, f"caption of {name}")
    assert {film.path.name: film.caption for film in videos_in(tmp_path)} == {
        "seed0.mp4": "caption of seed0.mp4", "seed0.gif": "caption of seed0.gif"
    }  # fmt: skip


def test_numbers_are_averages_over_whole_games():
    numbers = summarize_games(np.array([1.0, np.nan, 3.0]), np.array([10.0, np.nan, 30.0]))
    assert numbers == (2, 2.0, 1.0, 20.0, 0.1)
    with pytest.raises(ValueError, match="no game came to its end"):
        summarize_games(np.full(3, np.nan), np.full(3, np.nan))


def test_an_agent_with_a_network_of_its_own_is_filmed(tmp_path):
    env = jaxrl.make("CartPole-v1", num_envs=2)
    algo = jaxrl.ppo(env, jaxrl.networks.actor_critic(env.observation_space, env.action_space))
    config = jaxrl.PPOConfig(num_minibatches=1)
    policy = jaxrl.LoadedPolicy(algo, config, jax.jit(algo.init)(config, jax.random.key(0)))
    path, score, length = film(policy, tmp_path / "own.gif", greedy=True)
    assert path.exists()
    assert score == length > 1
    policy.algo = algo._replace(env=object())
    with pytest.raises(ValueError, match="cannot be drawn: it lacks for_rendering or render"):
        film(policy, tmp_path / "own.gif")
