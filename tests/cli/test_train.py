"""`jaxrl train`: runs of a few updates, and flags that are refused before anything is trained."""

import functools
import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from simulators import Faulty
from small_algorithms import same

import jaxrl
from jaxrl.cli import train
from jaxrl.cli.flags.train import parse, read_env_options
from jaxrl.presets import PRESETS
from jaxrl.training.loggers import read_jsonl
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.directory import directory_lock

ROOT = Path(__file__).parents[2]
SMALL = (
    "--num-envs", 2, "--num-steps", 4, "--total-steps", 8, "--num-evaluations", 0, "--run-dir",
    "run",
)  # fmt: skip
TINY = {
    "ppo": ("--num-minibatches", 2, "--num-epochs", 1),
    "a2c": (),
    "impala": (),
    "dqn": ("--replay-size", 100, "--batch-size", 2),
    "pqn": ("--num-minibatches", 2, "--num-epochs", 1),
    "r2d2": ("--replay-size", 200, "--batch-size", 2, "--core-size", 8),
}


def read(directory, name):
    return json.loads((directory / f"{name}.json").read_text())


@pytest.mark.parametrize(
    "algorithm",
    [
        name if name in ("ppo", "dqn") else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in TINY
    ],
)
def test_every_algorithm_is_trained(jaxrl_command, tmp_path, algorithm):
    finished = jaxrl_command("train", algorithm, *SMALL, *TINY[algorithm], "--hidden-sizes", 8)
    assert finished.returncode == 0, finished.stderr
    summary = read(tmp_path / "run", "summary")
    assert summary["algorithm"] == algorithm
    assert summary["updates"] >= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*seal.json is missing")
def test_a_run_begins_from_the_agent_of_another_which_its_resume_does_not_need(
    jaxrl_command, tmp_path
):
    flags = (*TINY["ppo"], "--hidden-sizes", 8, "--no-anneal")
    assert jaxrl_command("train", "ppo", *SMALL, *flags).returncode == 0
    old = jaxrl.load_policy(tmp_path / "run").state.params
    begin = ("train", "ppo", *SMALL[:-1], "new", *flags, "--init-from", "run", "--learning-rate", 0)
    assert jaxrl_command(*begin).returncode == 0
    for seal in (tmp_path / "new" / "checkpoints").rglob("seal.json"):
        seal.unlink()  # killed while it saved its first checkpoint
    (tmp_path / "new" / "summary.json").unlink()
    resumed = jaxrl_command(*begin, "--resume", "--total-steps", 8)
    assert "begins anew" in resumed.stderr
    shutil.rmtree(tmp_path / "run")
    resumed = jaxrl_command(*begin, "--resume", "--total-steps", 16)
    assert resumed.returncode == 0, resumed.stderr
    assert same(jaxrl.load_policy(tmp_path / "new").state.params, old)
    assert read(tmp_path / "new", "manifest")["init_from"]["run_dir"] == "run"


@pytest.mark.slow
def test_a_run_may_begin_from_an_agent_of_other_environments(jaxrl_command, tmp_path):
    maze = ("--env-id", "maze/FindAndReturn-v0", *TINY["dqn"], "--hidden-sizes", 8)
    for size, more in ((5, ()), (7, ("--init-from", "run"))):
        flags = [*SMALL, *maze, "--env-options", f"size={size}", "view=3", *more]
        flags[flags.index("run")] = "run" if size == 5 else "new"
        finished = jaxrl_command("train", "dqn", *flags)
        assert finished.returncode == 0, finished.stderr
    args = parse("dqn", ["--init-from", str(tmp_path / "run")])
    agent = train.load_agent(args, jaxrl.make("CartPole-v1", 2), tmp_path / "other")
    assert agent is not None
    assert agent.state.replay is None  # there may be no room for two


@pytest.mark.slow
def test_ppo_is_trained_on_atari_and_filmed(jaxrl_command, tmp_path, monkeypatch):
    def film(policy, path, seed):
        path.parent.mkdir()
        return path, 0.0, 1

    monkeypatch.setattr(train, "film", film)
    finished = jaxrl_command(
        "train", "ppo", "--preset", "laptop", *SMALL, *TINY["ppo"], "--total-steps", 16, "--video",
        "--torso", "mlp", "--hidden-sizes", 4,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert "steps_per_second" in finished.stdout
    assert "video: run/video/seed1.mp4, 1 steps, score 0" in finished.stdout
    caption = json.loads((tmp_path / "run" / "video" / "seed1.mp4.json").read_text())["caption"]
    assert caption == "1 steps, score 0"
    assert [row["update"] for row in read_jsonl(tmp_path / "run" / "metrics.jsonl")] == [1, 2]
    manifest = read(tmp_path / "run", "manifest")
    options = manifest["env"]["options"]
    assert options["episodic_life"] is True
    assert options["img_height"] == 42
    assert manifest["config"]["anneal_updates"] == 2


def test_presets_are_the_defaults_of_flags():
    args = parse("a2c", ["--gamma", "0.9", "--preset=ga3c", "--no-reward-clip"])
    assert (args.config.gamma, args.config.learning_rate) == (0.9, 3e-4)
    assert (args.reward_clip, args.episodic_life, args.anneal) == (False, False, False)
    assert parse("a2c", ["--preset", "baselines"]).config.learning_rate == 7e-4


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "takes an algorithm first, one of ppo, a2c, impala, dqn, pqn, r2d2, got 'nothing'"),
        (["sarsa"], "got 'sarsa'; --list shows the presets"),
        (["ppo", "--preset=other"], "'other'"),
        (["ppo", "--preset", "cartpole", "--episodic-life"], "--episodic-life"),
    ],
)
def test_unknown_names_are_refused(jaxrl_command, argv, message):
    finished = jaxrl_command("train", *argv)
    assert finished.returncode != 0
    assert message in finished.stdout + finished.stderr


def test_presets_are_listed(jaxrl_command):
    shown = jaxrl_command("train", "--list").stdout
    assert re.search(r"\n +impala +cartpole +CartPole-v1 +500,000 +classic control *\n", shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env-id", "Pnog-v5"], "did you mean .*envpool/Pong-v5"),
        (["--num-pools", "3"], "^--num-envs = 8 cannot be split over --num-pools = 3"),
        (["--env-options", "num_envs=4"], "--env-options cannot set num_envs; use --num-envs"),
        (["--env-options", "a"], "--env-options takes name=value, got 'a'"),
        (["--seed", str(10**20)], "seed must be an integer from 0"),
        (["--num-hosts", "2"], "need --coordinator address:port"),
        (["--autotune-also", "num_envs"], "--autotune-also needs --autotune"),
        (["--devices", "2", "--autotune"], "leave out --devices"),
        (["--devices", "0"], "--devices must be an integer >= 1, got 0"),
        (["--gamma", "1.5"], r"^--gamma must be within \[0, 1\], got 1.5"),
        (["--gamma", "much"], "Error parsing --gamma: could not convert"),
        (["--preset"], "Missing value for argument '--preset'"),
        (["--num-envs", "0"], "^--num-envs must be an integer >= 1, got 0"),
        (["--num-envs", "3", "--num-minibatches", "5"], "^--num-envs .*--num-minibatches = 5"),
        (["--env-id", "CartPole-v1", "--torso", "nature_cnn"], "(episodic_life|nature_cnn)"),
    ],
)
def test_bad_flags_end_in_one_line(monkeypatch, capsys, tmp_path, arguments, message):
    """With experiments/ppo_atari.py, whose flags these are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ppo_atari.py", *arguments, "--total-steps", "10"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "experiments" / "ppo_atari.py"), run_name="__main__")
    text = str(ended.value.code).removeprefix("error: ") + capsys.readouterr().err
    assert re.search(message, text)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_failing_simulator_is_one_message(jaxrl_command, monkeypatch, tmp_path):
    (tmp_path / "own.py").write_text(
        "import gymnasium\n"
        "class Broken(gymnasium.Wrapper):\n"
        "    def step(self, action):\n"
        "        raise ZeroDivisionError('a wheel came off')\n"
        "def make_broken():\n"
        "    return Broken(gymnasium.make('CartPole-v1'))\n"
    )
    finished = jaxrl_command(
        "train", "ppo", "--env-id", "gymnasium/own:make_broken", *SMALL, *TINY["ppo"],
        "--anneal-updates", 7,
    )  # fmt: skip
    assert finished.returncode == 1
    message = finished.stderr[finished.stderr.index("error: ") :]
    assert re.match(r"error: gymnasium/own:make_broken: environment 0 failed in step", message)
    assert message.endswith("ZeroDivisionError: a wheel came off\n")
    assert finished.stderr.count("Traceback") == 1
    assert read(tmp_path / "run", "manifest")["config"]["anneal_updates"] == 7


def test_a_run_that_cannot_be_filmed_is_not_trained(jaxrl_command, monkeypatch):
    env = jaxrl.make(functools.partial(Faulty, "step"), 2)  # takes no `render_mode`
    monkeypatch.setattr(train, "make", lambda *_, **__: env)
    monkeypatch.setattr(train, "run", lambda *_, **__: pytest.fail("it was trained"))
    finished = jaxrl_command("train", "ppo", *SMALL, "--video")
    assert "let the function that makes it take render_mode" in finished.stderr


def test_a_film_that_fails_does_not_hide_that_the_agent_is_trained(jaxrl_command, monkeypatch):
    def fail(*_):
        raise RuntimeError("INTERNAL: ...\nSimulatorError: a wheel came off\n\n----------\n...")

    monkeypatch.setattr(train, "film", fail)
    finished = jaxrl_command("train", "ppo", *SMALL, "--video", "--num-evaluations", "0")
    message = "error: the agent is trained, but --video failed: a wheel came off"
    assert finished.stderr.endswith(message)


def test_an_annealed_run_cannot_be_extended(tmp_path):
    algo, config = jaxrl.ppo(jaxrl.make("CartPole-v1", 2)), jaxrl.PPOConfig(anneal_updates=10)
    longer = config.replace(anneal_updates=20)
    train.check_annealing(tmp_path, algo, longer)
    arguments = {"seed": 1, "total_steps": 80, "log_every": 1}
    manifests.write(tmp_path, manifests.describe(algo, config, arguments))
    train.check_annealing(tmp_path, algo, longer)  # there is nothing to resume from
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)
    train.check_annealing(tmp_path, algo, config)
    with pytest.raises(ValueError, match=r"falls to 0 over its 10 updates, .* end after 20;"):
        train.check_annealing(tmp_path, algo, longer)
    # A change that alters the number of updates is named by `run`, with all others.
    train.check_annealing(tmp_path, jaxrl.ppo(jaxrl.make("CartPole-v1", 4)), longer)
    train.check_annealing(tmp_path, algo, longer.replace(num_steps=64))


FILE = """
env_id: Pendulum-v1
num_envs: 4
total_steps: 1e3
hidden_sizes: [8, 4]
normalize_rewards: true
anneal: false
target_kl: null
env_options: {max_steps_in_episode: 50}
"""


def test_a_file_gives_flags_their_values(tmp_path):
    (tmp_path / "run.yaml").write_text(FILE)
    args = parse("ppo", ["--config", str(tmp_path / "run.yaml"), "--num-envs", "2"])
    assert (args.env_id, args.num_envs, args.total_steps) == ("Pendulum-v1", 2, 1000)
    assert (args.config.hidden_sizes, args.config.normalize_rewards) == ((8, 4), True)
    assert (args.anneal, args.config.target_kl) == (False, None)
    assert args.env_options == ("max_steps_in_episode=50",)
    (tmp_path / "run.yaml").write_text("preset: pendulum")
    args = parse("ppo", ["--config", str(tmp_path / "run.yaml")])
    assert args.config == PRESETS["ppo"]["pendulum"].config


def test_a_manifest_is_such_a_file(tmp_path):
    path = tmp_path / "manifest.json"
    algo = jaxrl.ppo(jaxrl.make("Pong-v5", 2, img_height=42, num_threads=1))
    config = jaxrl.PPOConfig(torso="ga3c_cnn", anneal_updates=7, gamma=0.95)
    manifests.write(tmp_path, manifests.describe(algo, config, {"seed": 5, "total_steps": 3584}))
    args = parse("ppo", ["--config", str(path)])
    assert (args.env_id, args.seed, args.total_steps) == ("envpool/Pong-v5", 5, 3584)
    assert args.anneal
    assert args.config == config
    assert jaxrl.make(args.env_id, args.num_envs, **read_env_options(args)) == algo.env
    for flags in (["--total-steps", "7168"], ["--num-envs=4"], ["--no-anneal"]):
        args = parse("ppo", ["--config", str(path), *flags])
        assert args.config == config.replace(anneal_updates=0)  # `prepare` knows the new length
        assert args.anneal == ("--no-anneal" not in flags)
    with pytest.raises(ValueError, match=r"is of ppo, not of dqn; use jaxrl train ppo"):
        parse("dqn", ["--config", str(path)])
    own = jaxrl.ppo(algo.env, network=jaxrl.networks.actor_critic(
        algo.env.observation_space, algo.env.action_space
    ))  # fmt: skip
    manifests.write(tmp_path, manifests.describe(own, config, {"seed": 5}))
    with pytest.raises(ValueError, match=r"of a run with a network of its own; .* jaxrl\.rerun"):
        parse("ppo", ["--config", str(path)])


def test_flags_change_single_options_of_a_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("""
preset: laptop
env_options: {img_height: 42, num_threads: 1, episodic_life: true, range: [0.5, [1, 2]], tiny: 3e-4}
""")
    flags = ["--num-threads", "2", "--no-episodic-life", "--env-options", "range=3", "img_width=8"]
    options = read_env_options(parse("ppo", [*flags, "--config", str(path)]))
    assert options == {
        "img_height": 42, "img_width": 8, "range": 3, "num_threads": 2, "episodic_life": False,
        "tiny": 3e-4,
        "reward_clip": True, "repeat_action_probability": 0.0,
    }  # fmt: skip
    options = read_env_options(parse("ppo", ["--config", str(path)]))
    assert (options["num_threads"], options["range"]) == (1, [0.5, [1, 2]])


def test_fields_that_need_annealing_get_it_from_the_length_of_the_run(tmp_path):
    flags = ["--final-entropy-coef", "0.001", "--num-envs", "4", "--num-steps", "5"]
    where = ["--total-steps", "100", "--run-dir", str(tmp_path)]
    _, config, _ = train.prepare(jaxrl.a2c, parse("a2c", [*flags, *where]))
    assert (config.final_entropy_coef, config.anneal_updates) == (0.001, 5)
    message = r"^--final-entropy-coef = 0\.001 .*--anneal-updates, which is 0"
    with pytest.raises(ValueError, match=message):
        parse("a2c", [*flags, "--no-anneal"])


def test_a_constant_learning_rate_and_a_length_over_which_it_falls_exclude_each_other(tmp_path):
    message = "--no-anneal keeps .* but --anneal-updates 100"
    with pytest.raises(ValueError, match=message):
        parse("ppo", ["--no-anneal", "--anneal-updates", "100"])
    with pytest.raises(ValueError, match=r"part of the preset.* or give --anneal"):
        parse("dqn", ["--preset", "atari", "--anneal-updates", "100"])
    (tmp_path / "x.yaml").write_text("anneal_updates: 100\n")
    with pytest.raises(ValueError, match=message):
        parse("ppo", ["--config", str(tmp_path / "x.yaml"), "--no-anneal"])


def test_pairs_may_be_given_in_several_flags():
    words = ["--env-options", "img_height=42", "--env_options=img_width=8", "--seed", "3"]
    args = parse("ppo", ["--preset", "laptop", *words])
    assert args.env_options == ("img_height=42", "img_width=8")
    assert args.seed == 3


def test_flags_of_a_file_that_are_refused_name_it(tmp_path, capsys):
    (tmp_path / "x.yaml").write_text("no_such_flag: 3")
    with pytest.raises(SystemExit):
        parse("ppo", ["--config", str(tmp_path / "x.yaml")])
    error = capsys.readouterr().err
    assert "--no-such-flag" in error
    assert error.endswith(f"some of these flags are those of {tmp_path / 'x.yaml'}\n")


@pytest.mark.parametrize(
    "text",
    [
        "- a",
        "3",
        "a: [",
        "1: 2",
        "label: 2001-99-99",
        "seed: !!int ''",
        "config: {}\nscheduler: {}",
    ],
)
def test_other_files_are_refused_by_name(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"--config: .*x.yaml "):
        parse("ppo", ["--config", str(tmp_path / "x.yaml")])


def test_wandb_gets_the_rows_and_the_settings(jaxrl_command, monkeypatch):
    calls = []

    class Run:
        def log(self, row, step):
            calls.append(step)

        def finish(self):
            calls.append("end")

    class Wandb:
        @staticmethod
        def init(**arguments):
            calls.append(arguments)
            return Run()

    monkeypatch.setitem(sys.modules, "wandb", Wandb)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    finished = jaxrl_command(
        "train", "ppo", *SMALL, *TINY["ppo"], "--hidden-sizes", 8, "--wandb", "--label", "x"
    )
    assert finished.returncode == 0, finished.stderr
    assert (calls[0]["project"], calls[0]["name"]) == ("mine", "x")
    assert calls[0]["config"]["config"]["num_steps"] == 4
    assert calls[1:] == [8, "end"]
    refused = jaxrl_command("train", "ppo", *SMALL, *TINY["ppo"], "--wandb")
    assert "already holds a run" in refused.stderr
    shutil.rmtree("run")
    Path("run").mkdir()
    with directory_lock(Path("run")):  # as while another process compiles
        refused = jaxrl_command("train", "ppo", *SMALL, *TINY["ppo"], "--wandb")
    assert "another process works in" in refused.stderr
    assert len(calls) == 3  # no run was begun on the server


ATTACKS = (
    "env_id: gymnasium/os:system",
    "'env-id=gymnasium/os:system': true",
    "label: [x, --env-id, gymnasium/os:system]",
    "{env_id: envpool/D1Basic-v1, env_options: {vzd_path: /bin/sh}}",
)


@pytest.mark.parametrize("text", ATTACKS)
def test_a_file_cannot_name_code(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"--config: the environment of .*x.yaml (imports|runs)"):
        parse("ppo", ["--config", str(tmp_path / "x.yaml")])
    (tmp_path / "x.yaml").write_text("seed: 3")
    args = parse("ppo", [f"--config={tmp_path / 'x.yaml'}", "--env-id", "gymnasium/os:system"])
    assert (args.seed, args.env_id) == (3, "gymnasium/os:system")  # the caller's own


def test_flags_may_name_the_code_that_a_file_names_with_all_its_options(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("{env_id: gymnasium/my:env, env_options: {noise: 0.1, scale: 2}}")
    same = ["--env-id", "gymnasium/my:env", "--env-options", "scale=2", "noise=0.1"]
    args = parse("ppo", ["--config", str(file), *same])
    assert read_env_options(args) == {"noise": 0.1, "scale": 2}
    with pytest.raises(ValueError, match="give its --env-id and all of its --env-options as flags"):
        parse("ppo", ["--config", str(file), *same[:-1]])
