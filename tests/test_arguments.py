"""Every argument of every public function: a bad value is refused by name before any work."""

import dataclasses
import functools
import math
import os
import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl import networks, population, tuning
from jaxrl.algos import ALGORITHMS
from jaxrl.distributed.spread import spread
from jaxrl.networks.torsos import MLP
from jaxrl.training import run as run_module
from jaxrl.training.loggers import JsonlSink, TensorBoardSink
from jaxrl.tuning.sweeps import sweep_file

VALUES = (
    None, -1, 0, 0.5, math.nan, math.inf, 10**30, "x", "0.1", [], object(), True, np.int64(2),
    np.float32(1), np.ones(2), "é" * 200,
)  # fmt: skip
KEY = jax.random.key(0)
ENV = jaxrl.make("probe/Constant-v0", 2)
ALGO, CONFIG = toy(ENV), ToyConfig()
RULE = tuning.RandomSearch(2, 2)
SPACE = {"gamma": tuning.Uniform(0.9, 0.99)}
ONES = np.ones((2, 2))


class Accepted(BaseException):
    """Work would begin now."""


class Case(NamedTuple):
    """A public function and good values of its arguments."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    left_out: tuple[str, ...] = ()
    """Arguments whose bad values raise errors of another form."""


def shapes_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that traces `function` without computing."""

    def traced(**arguments: Any) -> None:
        jax.eval_shape(lambda: function(**arguments) and None)

    return traced


@functools.cache
def loaded_policy() -> jaxrl.LoadedPolicy:
    """Return a loaded policy with a memory that has acted once."""
    algo = jaxrl.ppo(ENV)
    config = jaxrl.PPOConfig(core="gru", core_size=2, hidden_sizes=(2,), num_minibatches=1)
    loaded = jaxrl.LoadedPolicy(algo, config, algo.init(config, KEY))
    loaded(np.zeros((2, 1)))
    return loaded


def options(id: str, **values: Any) -> Case:
    """Return the case of `jaxrl.make` with a backend's options."""
    return Case(lambda **changed: jaxrl.make(id, 2, **changed), values)


def cases() -> dict[str, Case]:
    """Return all cases by name."""
    agent = {"algo": ALGO, "config": CONFIG}
    space_pair = {"observation_space": ENV.observation_space, "action_space": ENV.action_space}
    parts = {"torso": MLP(), "head": MLP()}
    found = {
        "run": Case(jaxrl.run, agent | {
            "seed": 0, "total_steps": 8, "run_dir": None, "resume": False, "num_evaluations": 1,
            "eval_episodes": 1, "eval_greedy": False, "log_every": None, "chunk_updates": None,
            "chunk_seconds": 2.0, "checkpoint_seconds": 10.0, "sinks": (), "progress_bar": False,
            "init_from": None,
        }),
        "train": Case(shapes_of(jaxrl.train), agent | {"key": KEY, "num_updates": 2}),
        "evaluate": Case(shapes_of(jaxrl.evaluate), agent | {
            "state": ALGO.init(CONFIG, KEY), "env": ENV, "key": KEY, "episodes_per_env": 1,
            "greedy": False, "max_steps": 8,
        }, ("state",)),
        "make": Case(jaxrl.make, {"id": "probe/Constant-v0", "num_envs": 2}),
        "check_env": Case(jaxrl.check_env, {"env": ENV, "num_steps": 3, "seed": 0}, ("env",)),
        "compiler_options": Case(jaxrl.compiler_options, agent),
        "load_policy": Case(jaxrl.load_policy, {
            "run_dir": "nothing", "network": None, "make_algorithm": None, "env": None,
            "trust_imports": False,
        }, ("network", "make_algorithm", "env", "trust_imports")),
        "rerun": Case(jaxrl.rerun, {"run_dir": "nothing", "new_run_dir": "new"}),
        "LoadedPolicy": Case(lambda **given: loaded_policy()(**given), {
            "obs": np.zeros((2, 1)), "key": KEY,
        }, ("obs",)),
        "observe": Case(lambda **given: loaded_policy().observe(**given), {
            "reward": np.zeros(2), "first": False,
        }),
        "autotune": Case(jaxrl.autotune, {
            "build": lambda devices: (ALGO, CONFIG), "knobs": {"devices": [1]},
            "starts": [{"devices": 1}], "rate": lambda *_: 1.0, "seconds": 0.1, "max_trials": 1,
            "cache": None, "report": print,
        }),
        "spread": Case(spread, {"algo": jaxrl.a2c(ENV), "num_devices": 1, "num_lane_devices": 1}),
        "population": Case(population.population, {
            "algo": ALGO, "num_lanes": 2, "strategy": "vmap"
        }),
        "choose": Case(population.choose, {
            "algo": ALGO, "configs": population.stack(CONFIG, 2), "seconds": 0.01, "repeats": 1,
            "planned_steps": 1e6,
        }, ("repeats", "seconds")),
        "stack": Case(population.stack, {"config": CONFIG, "num_lanes": 2}),
        "search": Case(shapes_of(tuning.search), agent | {
            "space": SPACE, "scheduler": RULE, "num_lanes": 2, "updates_per_phase": 1, "key": KEY,
            "strategy": "vmap", "sampler": None, "objective": tuning.objectives.mean_return,
            "seeds_per_trial": 2, "finals": tuning.Finals(1, 1, 0.5), "max_steps": 1000,
        }),
        "ExpectedImprovement": Case(tuning.ExpectedImprovement, {"initial": 8, "candidates": 4}),
        "Finals": Case(tuning.Finals, {"top": 4, "repeats": 5, "share": 0.2}),
        "mean_minus_deviations": Case(tuning.objectives.mean_minus_deviations, {"number": 1.0}),
        "sweep": Case(tuning.sweep, agent | {
            "space": SPACE, "scheduler": RULE, "num_lanes": 2, "phase": tuning.Phase(1),
            "run_dir": "sweep", "seed": 0, "sampler": "random", "storage": None,
            "study_name": None, "strategy": "auto", "finals": None, "resume": False, "keep_best": 1,
            "keep_best_per": None, "worker": None, "agents_dir": None, "heartbeat_seconds": 60,
            "checkpoint_seconds": 30.0, "chunk_seconds": 2.0, "max_steps": 1e6, "max_seconds": 60.0,
            "progress_bar": False,
        }, left_out=("storage",)),  # a URL may have a password, so errors do not show it
        "simulate": Case(tuning.simulate, {
            "scheduler": RULE, "num_lanes": 2, "durations": ONES, "scores": ONES,
        }),
        "wall_time": Case(tuning.wall_time, {"spans": [tuning.Span(0, 0, 0, 0.0, 1.0)]}),
        "occupancy": Case(tuning.occupancy, {
            "spans": [tuning.Span(0, 0, 0, 0.0, 1.0)], "num_lanes": 2,
        }),
        "hypertrick_pruner": Case(tuning.hypertrick_pruner, {
            "num_trials": 2, "eviction_rate": 0.25
        }),
        "trial_key": Case(tuning.trial_key, {"key": KEY, "trial": 0}),
        "trial_values": Case(tuning.trial_values, {"space": SPACE, "key": KEY, "trial": 0}),
        "static_names": Case(tuning.static_names, {"space": SPACE, "config_class": ToyConfig}),
        "Uniform": Case(tuning.Uniform, {"low": 0.0, "high": 3.0}),
        "LogUniform": Case(tuning.LogUniform, {"low": 0.1, "high": 3.0}),
        "Integer": Case(tuning.Integer, {"low": 1, "high": 3}),
        "QLogUniform": Case(tuning.QLogUniform, {"low": 1, "high": 4, "q": 1, "rungs": None}),
        "Choice": Case(tuning.Choice, {"values": (1, 2)}),
        "When": Case(tuning.When, {
            "name": "gamma", "value": 1, "distribution": tuning.Uniform(0.0, 1.0),
        }),
        "RandomSearch": Case(tuning.RandomSearch, {"num_trials": 2, "num_phases": 2}),
        "HyperTrick": Case(tuning.HyperTrick, {
            "num_trials": 2, "num_phases": 2, "eviction_rate": 0.25
        }),
        "SuccessiveHalving": Case(tuning.SuccessiveHalving, {
            "num_trials": 2, "num_phases": 3, "eta": 3
        }),
        "ASHA": Case(tuning.ASHA, {"num_trials": 2, "num_phases": 3, "eta": 3}),
        "HyperBand": Case(tuning.HyperBand, {"num_phases": 3, "eta": 3}),
        "PBT": Case(tuning.PBT, {
            "num_trials": 2, "num_phases": 2, "quantile": 0.2, "resample": 0.25,
            "factors": (0.8, 1.2),
        }),
        "PB2": Case(tuning.PB2, {
            "num_trials": 2, "num_phases": 2, "quantile": 0.2, "resample": 0.25,
            "factors": (0.8, 1.2), "candidates": 4,
        }),
        "MFPBT": Case(tuning.MFPBT, {
            "num_trials": 8, "num_phases": 3, "periods": (1, 2), "factors": (0.8, 1.25),
        }),
        "check_scheduler": Case(tuning.check_scheduler, {"scheduler": RULE, "seed": 0}, (
            "scheduler",
        )),
        "check_explorer": Case(tuning.check_explorer, {
            "explorer": tuning.PBT(2, 1), "space": SPACE, "seed": 0,
        }, ("explorer",)),
        "check_sampler": Case(tuning.check_sampler, {
            "sampler": tuning.Sobol(), "space": SPACE, "num_trials": 2, "seed": 0,
        }, ("sampler",)),
        "Discrete": Case(jaxrl.Discrete, {"n": 2}),
        "MultiDiscrete": Case(jaxrl.MultiDiscrete, {"sizes": (2,)}),
        "Box": Case(jaxrl.Box, {
            "shape": (2,), "dtype": np.dtype(np.float32), "low": -1.0, "high": 1.0
        }),
        "Box.of": Case(jaxrl.Box.of, {"shape": (2,), "dtype": "f4", "low": -1.0, "high": 1.0}),
        "Dict": Case(jaxrl.Dict, {"parts": (("x", ENV.observation_space),)}),
        "Dict.of": Case(jaxrl.Dict.of, {"x": ENV.observation_space}, ("x",)),
        "ActorCriticHead": Case(
            networks.ActorCriticHead, {"action_space": ENV.action_space, "initial_std": 1.0}
        ),
        "QHead": Case(networks.QHead, {"num_actions": 2, "dueling": False}),
        "FeedForward": Case(networks.FeedForward, parts | {"critic_torso": None, "masked": False}),
        "Recurrent": Case(networks.Recurrent, parts | {
            "action_space": ENV.action_space, "core": "gru", "core_size": 2,
            "use_last_action_reward": False, "masked": False,
        }),
        "actor_critic": Case(networks.actor_critic, space_pair | {"config": None}),
        "q_network": Case(networks.q_network, space_pair | {
            "config": networks.NetworkConfig(),
        }),
        "num_parameters": Case(networks.num_parameters, {"params": {"x": ONES}}),
        "JsonlSink": Case(JsonlSink, {"path": "rows.jsonl", "resume_from": 0}),
        "TensorBoardSink": Case(TensorBoardSink, {"directory": "events", "resume_from": 0}),
        "CartPole": options("gymnax/CartPole-v1", max_steps_in_episode=9, gravity=9.8),
        "Asterix": options("gymnax/Asterix-MinAtar", ramping=True, shot_cool_down=5),
        "Acrobot": options("gymnax/Acrobot-v1", available_torque=(-1.0, 0.0, 1.0)),
        "DeepSea": options("gymnax/DeepSea-bsuite", size=8),
        "maze": options(
            "maze/FindAndReturn-v0", size=9, view=5, max_episode_steps=9, num_levels=0,
            first_level=0,
        ),
        "probe": options("probe/Episode-v0", limit=3),
        "Pong": options(
            "envpool/Pong-v5", num_pools=1, asynchronous=False, send_ahead=False, num_threads=1,
            frame_skip=4, stack_num=4, img_height=84, img_width=84, max_episode_steps=9,
            episodic_life=True, reward_clip=True, repeat_action_probability=0.0, noop_max=1,
            gray_scale=True, use_fire_reset=True, full_action_space=False,
        ),
        "Gymnasium": options(
            "gymnasium/CartPole-v1", vectorization_mode="sync", timeout=9.0, num_pools=1,
            asynchronous=False, send_ahead=False, max_episode_steps=9,
        ),
    }  # fmt: skip
    for name, algorithm in ALGORITHMS.items():
        found[name] = Case(algorithm, {"env": ENV, "network": None})
        config = algorithm(ENV).config_class()
        values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
        found[type(config).__name__] = Case(type(config), values)
    return found


CASES = cases()


@pytest.fixture(autouse=True)
def nothing_is_begun(tmp_path, monkeypatch):
    """Run in an empty directory, stop where runs and sweeps would open theirs, measure nothing."""

    def accept(*arguments: Any) -> None:
        raise Accepted

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_module, "TrainingLoop", accept)
    monkeypatch.setattr(run_module, "open_run_dir", accept)
    monkeypatch.setattr(sweep_file, "open_directory", accept)
    fast = SimpleNamespace(steps_per_second=lambda: math.inf)
    monkeypatch.setattr(population, "_Stopwatch", lambda *_: fast)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of simulators about strange values
@pytest.mark.parametrize(
    ("name", "argument"), [(name, x) for name, case in CASES.items() for x in case.arguments]
)
def test_a_value_is_accepted_or_refused_by_name(name, argument, tmp_path):
    function, arguments, left_out = CASES[name]
    problems = []
    for value in VALUES:
        try:
            function(**arguments | {argument: value})
        except Accepted:
            pass
        except (ValueError, FileNotFoundError) as error:
            text = str(error)
            if isinstance(error, FileNotFoundError):
                continue  # a path to nothing
            shown = [repr(value)[:20], str(value)[:20], f"{10.0**30:g}"[-4:]]  # or as a float
            if isinstance(value, list | np.ndarray):  # or as a tuple
                shown.append(repr(tuple(value)))
            is_named = argument in text and any(part in text for part in shown)
            if not is_named and argument not in left_out:
                problems.append(f"{value!r}: {type(error).__name__}: {text:.300}")
            if list(tmp_path.iterdir()):
                problems.append(f"{value!r} left files behind: {list(tmp_path.iterdir())}")
        except Exception as error:
            problems.append(f"{value!r}: {type(error).__name__}: {error!s:.300}")
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        os.chdir(tmp_path)
    assert not problems, "\n".join(problems)
