"""Agents side by side: tiles in their places, and the script's video and numbers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxrl
from jaxrl.analysis.grid import TILE_WIDTH, Tile, grid
from jaxrl.training import manifest as manifests

ROOT = Path(__file__).parents[2]
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def colored(*colors, height=40, width=80, caption=("a caption",)):
    frames = [(np.full((height, width, 3), color, np.uint8), "line") for color in colors]
    return Tile(caption, frames)


def test_tiles_have_their_places_and_hold_their_last_picture():
    tiles = [colored(RED), colored(GREEN, BLUE, RED), colored(BLUE, GREEN)]
    frames = list(grid(tiles))
    assert len(frames) == 3
    height, width = frames[0].shape[0] // 2, frames[0].shape[1] // 2
    assert frames[0].shape == (2 * height, 2 * width, 3)
    at = [(0, 0), (0, width), (height, 0)]
    colors = [[tuple(frame[y + 80, x + 160].tolist()) for y, x in at] for frame in frames]
    assert colors == [[RED, GREEN, BLUE], [RED, BLUE, GREEN], [RED, RED, GREEN]]
    np.testing.assert_array_equal(frames[0][:height, :width], frames[2][:height, :width])
    assert len(np.unique(frames[0][height:, width:].reshape(-1, 3), axis=0)) == 1


def test_pictures_of_several_sizes_are_resized_and_pixels_stay_sharp():
    checkers = np.indices((105, 160)).sum(0) % 2 * 255
    small = Tile([], [(np.repeat(checkers[..., None], 3, -1).astype(np.uint8), "")])
    large = colored(RED, height=400, width=600)
    (frame,) = grid([small, large], columns=1)
    margin = (frame.shape[1] - TILE_WIDTH) // 2
    picture = frame[margin + 1 : margin + 211, margin : margin + TILE_WIDTH]  # of 213 rows
    assert set(np.unique(picture)) == {0, 255}
    np.testing.assert_array_equal(picture[::2, ::2, 0], checkers)
    reds = (frame == RED).all(-1).sum()
    assert reds == TILE_WIDTH * round(400 * TILE_WIDTH / 600)


def test_captions_are_wrapped_and_change_with_the_picture():
    def text_rows(caption):
        (frame,) = grid([colored(RED, caption=caption)])
        return frame.shape[0] - 160

    assert text_rows(["word " * 30]) > text_rows(["word"])
    assert text_rows(["word", "word"]) > text_rows(["word"])
    picture = np.zeros((40, 80, 3), np.uint8)
    first, second = grid([Tile([], [(picture, "1 point"), (picture, "2 points")])])
    assert (first != second).any()
    assert (first[160:] == 241).any()  # of the words' colour


def test_no_videos_and_no_columns_are_refused():
    with pytest.raises(ValueError, match="no videos to show"):
        next(grid([]))
    with pytest.raises(ValueError, match="columns must be at least 1, got 0"):
        next(grid([colored(RED)], columns=0))


# --- the script ----------------------------------------------------------------------------------


@pytest.fixture
def script(experiment):
    return experiment("grid")


@pytest.fixture(scope="module")
def agents(tmp_path_factory, quick_compilation):
    """A run, and a copy of it that says it had another gamma."""
    folder = tmp_path_factory.mktemp("agents")
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2))
    config = jaxrl.PPOConfig(num_steps=16, num_minibatches=1, hidden_sizes=(8,), gamma=0.5)
    jaxrl.run(algo, config, seed=1, total_steps=32, run_dir=folder / "a", num_evaluations=0)
    other = shutil.copytree(folder / "a", folder / "b")
    manifest = manifests.read(other)
    manifests.write(other, manifest | {"config": manifest["config"] | {"gamma": 0.99}})
    return sorted(folder.iterdir())


def test_agents_are_filmed_side_by_side_and_told_apart(agents, script, tmp_path, capsys):
    out = tmp_path / "videos" / "gammas.mp4"
    script.main(script.Args(tuple(agents), out, episodes=3, max_steps=8))
    assert out.stat().st_size > 1000
    numbers = json.loads(out.with_suffix(".json").read_text())
    assert [agent["told_apart_by"] for agent in numbers] == [{"gamma": 0.5}, {"gamma": 0.99}]
    for agent in numbers:
        assert agent["games"] == 3
        assert agent["points_per_game"] == agent["game_length"] > 5
        assert agent["points_per_step"] == 1
    assert "gamma 0.5" in capsys.readouterr().out


def test_the_best_agents_of_a_sweep_come_in_their_order(agents, script, tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "sweep.json").write_text("{}")
    for trial, score in enumerate((3.0, 7.0)):
        manifest = manifests.read(agents[0]) | {"trial": trial, "score": score}
        (tmp_path / "best" / f"trial-{trial}").mkdir()
        manifests.write(tmp_path / "best" / f"trial-{trial}", manifest)
    found = script.agents_of(tmp_path)
    assert [path.name for path in found] == ["trial-1", "trial-0"]
    told = [{"trial": 1, "score": 7.0}, {"trial": 0, "score": 3.0}]
    assert script.distinctions(found) == told
    labels = [script.Agent(found[0], None, facts, {}).label for facts in (told[0], {})]
    assert labels == ["trial 1, score 7", "trial-1"]


def test_what_cannot_be_filmed_is_refused(agents, script, tmp_path):
    with pytest.raises(ValueError, match=r"name ends in .mp4 or .gif, got 'x.avi'"):
        script.main(script.Args((agents[0],), tmp_path / "x.avi"))
    with pytest.raises(ValueError, match="no agents to film"):
        script.main(script.Args(()))
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(ValueError, match="has kept no agents; search with --keep-best 3"):
        script.agents_of(tmp_path)


def test_a_refusal_is_one_line(tmp_path):
    finished = subprocess.run(
        [sys.executable, str(ROOT / "experiments" / "grid.py"), "runs/x"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert finished.returncode == 1
    assert finished.stderr == "error: runs/x is not a run directory: it has no manifest.json\n"
