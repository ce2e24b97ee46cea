"""Reading and grouping runs: the numbers that a comparison shows, and the runs that it refuses."""

import json

import numpy as np
import pytest
from toy_algorithm import ToyConfig, toy
from written_runs import BREAKOUT, CARTPOLE, PONG, read_groups, write_run

import jaxrl
from jaxrl.analysis.atari57 import human_normalized
from jaxrl.analysis.comparison import (
    differing_names,
    group_runs,
    mean_curve,
    read_run,
    run_settings,
    scores_over_games,
)
from jaxrl.training.run_dir import manifest as manifests


def test_runs_that_differ_by_their_seed_are_one_group(tmp_path):
    write_run(tmp_path / "a1", seed=1)
    write_run(tmp_path / "a2", seed=2)
    write_run(tmp_path / "b", gamma=0.9)
    write_run(tmp_path / "c", algorithm="dqn")
    write_run(tmp_path / "d", env_id=PONG)
    found = read_groups(tmp_path)
    assert [(x.method, x.env_id, [run.seed for run in x.runs]) for x in found] == [
        ("ppo gamma=0.99", CARTPOLE, [1, 2]),
        ("ppo gamma=0.9", CARTPOLE, [1]),
        ("dqn", CARTPOLE, [1]),
        ("ppo gamma=0.99", PONG, [1]),
    ]


def test_options_that_only_change_the_speed_are_not_settings(tmp_path):
    manifest = manifests.read(write_run(tmp_path / "a"))
    options = {"num_threads": 4, "num_pools": 2, "frame_skip": 2}
    found = run_settings(manifest | {"env": manifest["env"] | {"options": options}})
    assert {name: found.get(name) for name in options} == {
        "num_threads": None, "num_pools": None, "frame_skip": 2,
    }  # fmt: skip


def test_an_option_named_like_a_field_of_the_config_is_a_setting_of_its_own(tmp_path):
    for seed, gamma in ((1, 0.5), (2, 0.7)):
        directory = write_run(tmp_path / f"{seed}", seed=seed, gamma=0.9)
        manifest = manifests.read(directory)
        manifest["env"]["options"] = {"gamma": gamma}
        manifests.write(directory, manifest)
    groups = read_groups(tmp_path)
    assert [group.method for group in groups] == ["ppo env.gamma=0.5", "ppo env.gamma=0.7"]
    assert [group.settings["gamma"] for group in groups] == [0.9, 0.9]


def test_a_label_that_is_another_method_s_name_is_told_apart(tmp_path):
    write_run(tmp_path / "a", gamma=0.9)
    write_run(tmp_path / "b", gamma=0.8)
    directory = write_run(tmp_path / "c", gamma=0.7)
    manifests.write(directory, manifests.read(directory) | {"label": "ppo gamma=0.9"})
    methods = [group.method for group in read_groups(tmp_path)]
    assert methods == ["ppo gamma=0.9", "ppo gamma=0.8", "ppo gamma=0.9 (2)"]


def test_rows_without_steps_are_left_out(tmp_path):
    directory = write_run(tmp_path / "a")
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"update": 9, "eval_return": 1.0}\n')
    assert read_run(directory).rows[-1] == {"update": 5, "steps": 1001, "eval_return": 21.0}


def test_runs_with_a_label_are_a_method_of_that_name(tmp_path):
    for name, label in (("a", None), ("b", "mine"), ("c", "yours")):
        directory = write_run(tmp_path / name)
        manifests.write(directory, manifests.read(directory) | {"label": label})
    assert [group.method for group in read_groups(tmp_path)] == ["ppo", "mine", "yours"]


def test_equal_numbers_are_one_setting(tmp_path):
    """A config of Python holds gamma=1 as 1, the command's --gamma 1 as 1.0."""
    write_run(tmp_path / "a", seed=1, gamma=1, sizes=[1, {"x": 2}], clip=True)
    write_run(tmp_path / "b", seed=2, gamma=1.0, sizes=[1.0, {"x": 2.0}], clip=True)
    write_run(tmp_path / "c", seed=3, gamma=1, sizes=[1, {"x": 2}], clip=1)
    groups = read_groups(tmp_path)
    assert [(x.method, len(x.runs)) for x in groups] == [("ppo clip=True", 2), ("ppo clip=1", 1)]


@pytest.mark.parametrize("label", [None, "mine"])
def test_networks_of_users_without_a_label_may_differ(tmp_path, label):
    for seed in (1, 2):
        directory = write_run(tmp_path / f"{seed}", seed=seed)
        own = {"custom_network": True, "label": label}
        manifests.write(directory, manifests.read(directory) | own)
    if label:
        read_groups(tmp_path)  # without a warning
        return
    with pytest.warns(UserWarning, match=r"1 and .*2 have networks of your own and no labels"):
        (group,) = read_groups(tmp_path)
    assert len(group.runs) == 2


def test_runs_that_began_from_other_agents_are_methods_of_their_own_unless_labeled(tmp_path):
    agents = [{"run_id": x, "run_dir": "old", "update": 3} for x in ("x", "y")]
    for place, agent in enumerate([None, {}, *agents]):
        for label in (None, "tuned"):
            directory = tmp_path / f"{place}-{label}"
            write_run(directory, seed=place)
            manifest = json.loads((directory / "manifest.json").read_text())
            del manifest["digest"]
            manifest |= {"init_from": agent, "label": label}
            (directory / "manifest.json").write_text(json.dumps(manifest))
    groups = read_groups(tmp_path)
    assert sorted(len(group.runs) for group in groups) == [1, 1, 1, 1, 4]
    assert "init_from=x, update 3" in " ".join(group.method for group in groups)


def test_methods_with_many_different_settings_are_numbered(tmp_path):
    write_run(tmp_path / "a", gamma=0.9, clip=0.1, epochs=1, torso="mlp")
    write_run(tmp_path / "b", gamma=0.8, clip=0.2, epochs=2, torso="cnn")
    assert [group.method for group in read_groups(tmp_path)] == ["ppo #1", "ppo #2"]


def test_differing_names_are_those_of_unequal_or_missing_values():
    columns = [{"a": 1, "b": [1], "c": None}, {"a": 1, "b": [2]}]
    assert differing_names(columns) == ["b", "c"]
    assert differing_names(columns[:1]) == []


def test_curves_are_means_over_seeds_until_the_shortest_ends(tmp_path):
    write_run(tmp_path / "a", seed=1, level=10.0)
    write_run(tmp_path / "b", seed=2, level=30.0, num_rows=10)
    (group,) = read_groups(tmp_path)
    np.testing.assert_array_equal(group.final_returns, [[10.0], [30.0]])
    steps, returns = mean_curve(group, "steps")
    assert (steps[0], steps[-1]) == (202, 1001)
    # The second run is one of 200 steps short of 15, half of its level.
    assert returns.value[-1] == pytest.approx((10.0 + 15.0 - 3 / 200) / 2)
    assert returns.low[-1] == pytest.approx(10.0)
    seconds, _ = mean_curve(group, "seconds")
    assert (seconds[0], seconds[-1]) == (2.5, 3.5)


def test_scores_over_games_need_equally_many_runs_on_each_game(tmp_path):
    for algorithm, env_id, seeds in (
        ("ppo", PONG, (1, 2)), ("ppo", BREAKOUT, (1, 2)), ("a2c", PONG, (1, 2)),
        ("a2c", BREAKOUT, (1,)), ("dqn", PONG, (1,)),
    ):  # fmt: skip
        for seed in seeds:
            directory = tmp_path / f"{algorithm}-{env_id[8:]}-{seed}"
            write_run(directory, seed, 10.0 * seed, algorithm, env_id)
    runs = [read_run(directory) for directory in sorted(tmp_path.iterdir(), reverse=True)]
    scores, left_out = scores_over_games(group_runs(runs))
    assert [*scores] == ["ppo"]
    assert scores["ppo"].shape == (2, 2)
    assert scores["ppo"][0, 0] == human_normalized(PONG, 20.0)
    assert left_out == {
        "a2c": "1 to 2 seeds a game, not equally many",
        "dqn": f"no run on {BREAKOUT}",
    }


def test_a_trained_run_is_read(tmp_path):
    run_dir = tmp_path / "run"
    jaxrl.run(toy(), ToyConfig(), seed=3, total_steps=64, run_dir=run_dir, eval_episodes=2)
    run = read_run(run_dir)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert run.final_return == pytest.approx(summary["mean_return"])
    assert run.evaluation == summary["eval_return"]
    assert run.is_finished
    assert run.commands == [run.manifest["command"]]
    assert run_settings(run.manifest)["gamma"] == 0.9


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "x is not a run directory: it does not exist"),
        ({}, "x is not a run directory: it has no manifest.json"),
        (
            {"manifest.json": '{"algorithm": "ppo"}'},
            "manifest.json is damaged: it lacks env, config",
        ),
        ({"sweep.json": "{}"}, "x holds a sweep, not a run; leave it out (its page is"),
    ],
)
def test_other_directories_are_refused(tmp_path, files, message):
    if files is not None:
        (tmp_path / "x").mkdir()
        for name, text in files.items():
            (tmp_path / "x" / name).write_text(text)
    with pytest.raises((ValueError, OSError)) as refusal:
        read_run(tmp_path / "x")
    assert message in str(refusal.value)


def test_runs_without_episodes_are_refused(tmp_path):
    metrics = write_run(tmp_path / "x") / "metrics.jsonl"
    metrics.unlink()
    refusal = r"no episode ended in .*metrics.jsonl, or its rows lack one of .*; train the run"
    with pytest.raises(ValueError, match=refusal):
        read_run(tmp_path / "x")
    metrics.write_text('{"update": 1, "steps": 8, "episode_count": 1, "episode_return": 2.0}\n')
    with pytest.raises(ValueError, match=refusal):
        read_run(tmp_path / "x")


def test_a_run_whose_mean_return_overflows_is_named(tmp_path):
    write_run(tmp_path / "x", level=1e308)
    group = read_groups(tmp_path)[0]
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=r"x/metrics.jsonl has values"):
        mean_curve(group, "steps")


def test_an_agent_that_a_sweep_kept_is_refused(tmp_path):
    path = write_run(tmp_path / "x")
    manifests.write(path, manifests.read(path) | {"trial": 7})
    with pytest.raises(ValueError, match="x holds an agent that a sweep kept"):
        read_run(tmp_path / "x")


def test_no_runs_and_equal_seeds_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no runs to compare; give directories of runs"):
        group_runs([])
    run = read_run(write_run(tmp_path / "x"))
    with pytest.raises(ValueError, match="x have the same settings and seed 1; give one of them"):
        group_runs([run, run])
