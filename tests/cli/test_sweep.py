"""`jaxrl sweep`: what it prints and leaves, its lanes, and flags that are refused."""

import functools
import json
import math
import shlex

import jax
import pytest
import sweep_runs
import tyro
from written_sweeps import sweep_of, trial

import jaxrl
from jaxrl import config as fields
from jaxrl import tuning
from jaxrl.algos import ALGORITHMS
from jaxrl.analysis.sweep_tables import TextTable
from jaxrl.cli import sweep, sweep_result
from jaxrl.cli.flags import arguments
from jaxrl.cli.flags import autotune as autotune_flags
from jaxrl.cli.flags import sweep as sweep_flags
from jaxrl.cli.flags.train import parse, read_env_options
from jaxrl.presets import PRESETS
from jaxrl.training.autotune import AutotuneResult
from jaxrl.tuning import objectives
from jaxrl.tuning.sweeps import sweep_file

SMALL = (
    "sweep", "--algo", "ppo", "--env-id", "CartPole-v1", "--num-envs", 2, "--lanes", 2,
    "--phase-unit", "updates", "--strategy", "vmap", "--videos-by", "gamma", "--run-dir", "sweep",
)  # fmt: skip
TINY = ("hidden_sizes=(8,)", "num_minibatches=1", "num_epochs=1")


@pytest.mark.slow
def test_a_sweep_leaves_a_leaderboard_a_page_and_videos(jaxrl_command, tmp_path, monkeypatch):
    run_dir = tmp_path / "sweep"
    words = [
        *SMALL, "--trials", 4, "--phases", 2, "--phase-length", 2, "--set", "num_steps=16", *TINY,
        "--space", "learning_rate=LogUniform(1e-4, 1e-2)", "gamma=Choice((0.9, 0.99))",
        "--final-trials", 1, "--final-runs", 2, "--final-share", 0.5,
        "--objective", "mean", "lowest", "--seeds-per-trial", 2,
    ]  # fmt: skip
    finished = jaxrl_command(*words)
    assert finished.returncode == 0, finished.stderr
    assert "Pareto front of the last two scores" in finished.stdout
    assert "finals: the same settings with new seeds" in finished.stdout
    (winner,) = sweep_file.read(run_dir)["finals"]
    assert len(winner["scores"]) == 2
    assert f"in the finals, {winner['search']:.6g} in the search" in finished.stdout
    assert "\nits best agent of the finals: jaxrl play sweep/finals/best/trial-" in finished.stdout
    assert f"trial {winner['trial']}, score" in (run_dir / "report.html").read_text()
    assert "<h2>Finals</h2>" in (run_dir / "report.html").read_text()
    assert (run_dir / "report.html").read_text().count("data:image/png") == 6
    films = list((run_dir / "videos").glob("trial-*.mp4"))
    assert films
    for film in films:
        beside = json.loads(film.with_name(f"{film.name}.json").read_text())
        assert beside["caption"].startswith("gamma 0.9")
        assert beside["numbers"]["games"] == 4
        assert beside["numbers"]["points_per_step"] == 1
    line = next(x for x in finished.stdout.splitlines() if x.startswith("best config: "))
    best = shlex.split(line.removeprefix("best config: jaxrl "))
    config = parse(best[1], best[2:]).config
    assert (config.hidden_sizes, config.num_steps) == ((8,), 16)
    assert config.gamma == winner["values"]["gamma"]
    monkeypatch.setattr(sweep, "film_agents", lambda *_: None)
    again = jaxrl_command(*words, "--resume")
    assert again.returncode == 0, again.stderr
    assert line in again.stdout


@pytest.mark.slow
def test_population_based_training_leaves_the_schedule_of_its_winner(jaxrl_command, tmp_path):
    words = [
        "sweep", "--algo", "a2c", "--env-id", "CartPole-v1", "--num-envs", 2, "--scheduler", "pbt",
        "--trials", 4, "--phases", 2, "--phase-length", 2, "--phase-unit", "updates",
        "--strategy", "vmap", "--run-dir", "x", "--set", "num_steps=64", "hidden_sizes=(8,)",
    ]  # fmt: skip
    finished = jaxrl_command(*words)
    assert finished.returncode == 0, finished.stderr
    assert "best schedule: the phases that led to the winner" in finished.stdout
    assert "the highest score of a phase; --final-trials chooses" in finished.stdout
    assert "best config" not in finished.stdout
    held = sweep_file.read(tmp_path / "x")
    assert (held["lanes"], held["scheduler"]["name"], len(held["trials"])) == (4, "PBT", 4)
    assert sum(t["changes"][0]["parent"] != t["trial"] for t in held["trials"]) == 1
    assert jaxrl_command("report", "x").returncode == 0
    for page in ("report.html", "study/report.html"):
        assert "<h2>Schedule of the winner</h2>" in (tmp_path / "x" / page).read_text()
    again = jaxrl_command(*words, "--resume")
    assert again.returncode == 0, again.stderr
    assert sweep_file.read(tmp_path / "x")["trials"] == held["trials"]


def test_the_population_has_as_many_trials_as_lanes():
    def sizes(scheduler, **flags):
        args = sweep_flags.SweepArguments(scheduler=scheduler, **flags)
        return args.num_trials, args.num_lanes

    assert sizes("hypertrick") == (100, 16)
    assert sizes("hypertrick", trials=8) == (8, 16)
    assert sizes("pbt") == (16, 16)
    assert sizes("pbt", trials=40) == (40, 40)
    assert sizes("pb2", lanes=5) == (5, 5)
    assert sizes("mfpbt", trials=8, lanes=4) == (8, 4)  # which is refused


def scheduler_of(name, *flags):
    args = tyro.cli(sweep_flags.SweepArguments, args=["--scheduler", name, *flags])
    return sweep_flags.make_scheduler(args)


def test_flags_name_schedulers_and_their_rules():
    assert scheduler_of("hypertrick", "--eviction", "0.5") == tuning.HyperTrick(100, 10, 0.5)
    assert scheduler_of("random", "--trials", "8") == tuning.RandomSearch(8, 10)
    assert scheduler_of(
        "halving", "--trials", "8", "--phases", "4", "--eta", "2", "--times", "2"
    ) == (tuning.SuccessiveHalving(8, 4, 2, times=2))
    assert scheduler_of("hyperband", "--phases", "9", "--times", "4") == tuning.HyperBand(
        9, times=4
    )
    assert scheduler_of("asha", "--eta", "2") == tuning.ASHA(100, 10, 2)
    assert scheduler_of("pbt", "--quantile", "0.4") == tuning.PBT(16, 10, 0.4)
    assert scheduler_of("pb2", "--trials", "8") == tuning.PB2(8, 10)
    assert scheduler_of("mfpbt", "--periods", "1", "4") == tuning.MFPBT(16, 10, (1, 4))


@pytest.mark.parametrize(
    ("name", "flags", "readers"),
    [
        ("hypertrick", ["--eta", "2"], "halving, hyperband, asha"),
        ("asha", ["--times", "2"], "halving, hyperband"),
        ("pbt", ["--eviction", "0.5"], "hypertrick"),
        ("hyperband", ["--trials", "8"], "hypertrick, random, halving, asha, pbt, pb2, mfpbt"),
    ],
)
def test_a_flag_of_other_schedulers_is_refused(name, flags, readers):
    message = f"{flags[0]} is for --scheduler {readers}; leave it out with {name}"
    with pytest.raises(ValueError, match=message):
        scheduler_of(name, *flags)


@pytest.mark.parametrize("scheduler", ["pbt", "hypertrick"])
def test_explorers_search_no_rollout_length_by_default(scheduler):
    args = sweep_flags.SweepArguments(algo="a2c", scheduler=scheduler)
    assert ("num_steps" in sweep.make_space(args)) == (scheduler == "hypertrick")


@pytest.mark.parametrize(
    ("unit", "cap", "top"), [("updates", 40_000, 2), ("steps", 20_000, 1), ("episodes", 9, 4)]
)
def test_finals_of_a_capped_sweep_have_a_share_of_the_cap(monkeypatch, tmp_path, unit, cap, top):
    """A trial has 10 phases of 5 updates or steps of 16; the cap allows 50, 25 or unknown ones."""
    asked = {}
    monkeypatch.setattr(sweep, "split_cpu", lambda _: None)
    monkeypatch.setattr(tuning, "sweep", lambda *args, **kwargs: asked.update(kwargs))
    args = ["--algo", "ppo", "--env-id", "CartPole-v1", "--num-envs", 4, "--set", "num_steps=4"]
    args += ["--set", "num_minibatches=1", "--run-dir", tmp_path / "x", "--max-steps", cap]
    args += ["--phase-length", 5 if unit == "updates" else 80, "--phase-unit", unit]
    sweep.search(sweep.parse([str(arg) for arg in args]))
    assert asked["finals"] == tuning.Finals(top, 5, 0.2)
    assert asked["max_steps"] == cap


def test_finals_are_as_many_as_their_share_allows():
    def found(num_trials, storage=None, allowed=math.inf, **flags):
        args = sweep_flags.SweepArguments(**flags)
        return sweep_flags.make_finals(args, num_trials, storage, allowed)

    assert found(100) == found(900) == tuning.Finals(4, 5, 0.2)
    assert found(50) == tuning.Finals(2, 5, 0.2)
    assert found(100, allowed=50) == tuning.Finals(2, 5, 0.2)
    assert found(24) is None
    assert found(24, final_share=1.0, final_runs=3) == tuning.Finals(4, 3, 1.0)
    assert found(100, final_trials=0) is None
    assert found(100, max_seconds=9.0) == tuning.Finals(4, 5, 0.2)
    assert found(100, max_seconds=9.0, storage="sqlite:///study.db") is None
    one = found(20, final_trials=1)
    assert one is not None
    with pytest.raises(ValueError, match=r"are 5 runs, 0\.25 times the 20 trials"):
        one.check(20)


def test_flags_name_one_objective_or_several():
    assert sweep_flags.make_objective(sweep_flags.SweepArguments()) is objectives.mean_return
    one = sweep_flags.make_objective(sweep_flags.SweepArguments(objective=("mean-std",)))
    assert callable(one)
    assert one.__name__ == "mean_minus_1_deviations"
    several = sweep_flags.make_objective(sweep_flags.SweepArguments(objective=("lowest", "mean")))
    assert several == {"lowest": objectives.lowest_return, "mean": objectives.mean_return}
    assert objectives.names_of(several) == ["lowest", "mean"]


@pytest.mark.usefixtures("no_pictures")
def test_a_sweep_without_a_score_has_no_winner(tmp_path, capsys):
    lines = {
        0: "no winner: no trial has a finite score",
        2: "no trial of this worker has a finite score",
    }
    for elsewhere, line in lines.items():
        held = sweep_of([trial(0, [None, None])], elsewhere=elsewhere, storage=None)
        result = tuning.SweepResult(held, False, tmp_path)
        sweep_result.report_result(sweep_flags.SweepArguments(), result)
        printed = capsys.readouterr().out.splitlines()
        assert printed[-2:] == [line, f"report: {tmp_path / 'report.html'}"]


@pytest.mark.usefixtures("no_pictures")
def test_an_interrupt_in_the_finals_is_told_from_one_in_the_search(tmp_path, capsys):
    held = sweep_of([trial(0, [2.0])], elsewhere=0, storage=None)
    result = tuning.SweepResult(held, True, tmp_path)
    line = "the search has ended, its finals have not"
    sweep_result.report_result(sweep_flags.SweepArguments(), result)
    assert line not in capsys.readouterr().out
    (tmp_path / "finals").mkdir()
    (tmp_path / "finals" / "sweep.json").write_text("{}")
    sweep_result.report_result(sweep_flags.SweepArguments(), result)
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("interrupted", "elsewhere", "flags", "line"),
    [
        (True, 0, {}, "best so far: trial 1, score 3"),
        (False, 0, {}, "winner: trial 1, score 3"),
        (False, 2, {}, "best of this worker's trials: trial 1, score 3"),
        (
            False,
            0,
            {"max_steps": 9},
            "--max-steps or --max-seconds ended the sweep; trials that never began: 3",
        ),
    ],
)
@pytest.mark.usefixtures("no_pictures")
def test_a_sweep_without_finals_says_what_its_best_trial_is(
    tmp_path, monkeypatch, capsys, interrupted, elsewhere, flags, line
):
    monkeypatch.setattr(sweep_result, "format_command", lambda *_: "jaxrl train")
    held = sweep_of([trial(0, [2.0]), trial(1, [3.0], "stopped")], elsewhere=elsewhere)
    held["scheduler"]["num_trials"] = 5
    held["storage"] = "postgresql://user@host/db"
    result = tuning.SweepResult(held, interrupted, tmp_path)
    sweep_result.report_result(sweep_flags.SweepArguments(**flags), result)
    text = capsys.readouterr().out
    assert f"\n{line}" in text
    assert ("\nbest config: " in text) == (not interrupted and not elsewhere)
    assert ("\nconfig of that trial: " in text) == (elsewhere > 0)
    advice = f"jaxrl report {tmp_path} --storage postgresql://user@host/db shows all"
    assert (advice in text) == (elsewhere > 0)


def test_tables_in_a_file_are_not_cut(capsys):
    names = [f"a_long_name_of_a_field_{n}" for n in range(6)]
    sweep_result.print_table(TextTable(names, [["0.123456"] * 6]), "trials")
    text = capsys.readouterr().out
    assert all(name in text for name in names)


def test_tables_are_printed_from_their_first_rows(capsys):
    rows = [[str(n), "[red]"] for n in range(12)]
    sweep_result.print_table(TextTable(["trial", "value"], rows), "trials", 10)
    text = capsys.readouterr().out
    assert "trials, the first 10 of 12" in text
    assert text.count("[red]") == 10
    sweep_result.print_table(TextTable(["trial"], []), "none")
    assert not capsys.readouterr().out


@pytest.mark.exhaustive
def test_a_sweep_without_a_score_films_nothing_and_has_its_page(jaxrl_command, tmp_path):
    finished = jaxrl_command(
        *SMALL, "--trials", 2, "--phases", 1, "--phase-length", 1, "--set", "num_steps=2", *TINY
    )
    assert finished.returncode == 0, finished.stderr
    assert "best config" not in finished.stdout
    assert (tmp_path / "sweep" / "report.html").exists()


@pytest.mark.parametrize(
    ("algo", "env_id"),
    [
        ("ppo", "gymnasium/ALE/Pong-v5"), ("r2d2", "Pong-v5"), ("dqn", "Pong-v5"),
        ("a2c", "Pong-v5"), ("impala", "Pong-v5"),
    ],
)  # fmt: skip
def test_the_best_config_is_trained_on_the_environment_of_the_sweep(algo, env_id):
    pytest.importorskip("ale_py")
    env = sweep.make_environment(env_id, 2, ("noop_max=5",) if algo == "ppo" else ())
    best = {"trial": 0, "values": {"gamma": 0.9}, "scores": [1.0]}
    args = sweep.SweepArguments(algo=algo, env_id=env_id, num_envs=2)
    config = fields.to_dict(ALGORITHMS[algo](env).config_class(torso="mlp"))
    summary = {
        "trials": [best], "env_options": env.options, "config": config,
        "phase": {"length": 10, "unit": "episodes"}, "scheduler": {"num_phases": 3},
    }  # fmt: skip
    line = sweep_result.format_command(args, tuning.SweepResult(summary, False, sweep.Path("x")))
    train_words, command_algo, *flags = shlex.split(line)[1:]
    assert (train_words, command_algo) == ("train", algo)
    trained = parse(algo, flags)
    assert arguments.parse_env_options(trained.env_options) == env.options
    assert env.options["episodic_life"] is True
    if env_id == "Pong-v5":
        assert read_env_options(trained)["repeat_action_probability"] == 0
    defaults = jaxrl.ppo(env).config_class if algo == "ppo" else type(trained.config)
    assert trained.config == defaults(gamma=0.9, torso="mlp")


def test_the_best_config_is_that_of_an_environment_which_needs_its_options():
    options = {"fault": "3", "num_pools": 2, "vectorization_mode": "sync"}
    args = sweep.SweepArguments(algo="ppo", env_id="gymnasium/simulators:Faulty", num_envs=4)
    best = {"trial": 0, "values": {"gamma": 0.9}, "scores": [1.0]}
    config = fields.to_dict(jaxrl.PPOConfig(anneal_updates=100))
    summary = {
        "trials": [best], "env_options": options, "config": config,
        "phase": {"length": 10, "unit": "updates"}, "scheduler": {"num_phases": 3},
    }  # fmt: skip
    line = sweep_result.format_command(args, tuning.SweepResult(summary, False, sweep.Path("x")))
    trained = parse("ppo", shlex.split(line)[3:])
    assert (trained.env_id, trained.num_envs, trained.config.gamma) == (args.env_id, 4, 0.9)
    assert (trained.anneal, trained.config.anneal_updates) == (True, 100)
    assert trained.run_dir == sweep.Path("x/winner")
    assert trained.total_steps == 3 * 10 * 4 * jaxrl.PPOConfig().num_steps
    assert arguments.parse_env_options(trained.env_options) == options


@pytest.mark.slow
def test_values_that_are_not_searched_come_from_the_preset_or_the_resumed_sweep(
    tmp_path, monkeypatch
):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2))
    base = functools.partial(sweep.base_config, algo=algo, run_dir=tmp_path)
    assert base(sweep.SweepArguments(algo="ppo")) == jaxrl.PPOConfig()
    args = sweep.SweepArguments(algo="ppo", preset="minatar")
    assert base(args) == PRESETS["ppo"]["minatar"].config
    with pytest.raises(ValueError, match=r"--preset must be one of .*minatar.*, got 'maxatar'"):
        base(sweep.SweepArguments(algo="ppo", preset="maxatar"))
    saved = jaxrl.PPOConfig(num_steps=128, learning_rate=2.5e-4)
    sweep_runs.stop_after(monkeypatch, 0)
    result = sweep_runs.run(
        tmp_path, tuning.RandomSearch(1, 1), {"gamma": tuning.Uniform(0.9, 0.99)}, algo, saved,
        num_lanes=1, phase=tuning.Phase(1),
    )  # fmt: skip
    assert base(sweep.SweepArguments(algo="ppo", resume=True)) == saved
    assert result.summary["config"]["num_steps"] == 128
    with pytest.raises(ValueError, match=r"--algo must be ppo as in .*, got dqn; it began with: "):
        base(sweep.SweepArguments(algo="dqn", resume=True), algo=jaxrl.dqn(algo.env))


def test_autotuning_chooses_at_most_the_lanes_of_the_flag(monkeypatch, tmp_path):
    asked, num_agents = [], []

    def autotune(build, knobs, starts, rate, report):
        asked.append((knobs, starts))
        algo, configs = build(lanes=2)
        assert algo.name == "a2c"
        num_agents.append(len(configs.learning_rate))
        return AutotuneResult({"lanes": 2}, ())

    monkeypatch.setattr(autotune_flags, "autotune", autotune)
    algo, config = jaxrl.a2c(jaxrl.make("CartPole-v1")), jaxrl.A2CConfig()
    gamma = {"gamma": tuning.Uniform(0.9, 0.99)}
    lanes = functools.partial(sweep.find_fastest_lanes, algo, config, gamma, run_dir=tmp_path)
    assert lanes(sweep.SweepArguments(lanes=6)) == 2
    assert asked == [({"lanes": [1, 2, 4, 6]}, [{"lanes": 6}])]
    monkeypatch.setattr(sweep.sweep_file, "read", lambda directory: {"lanes": 3})
    (tmp_path / "sweep.json").touch()
    assert lanes(sweep.SweepArguments(lanes=6, resume=True)) == 3
    assert lanes(sweep.SweepArguments(lanes=1)) == 1
    assert len(asked) == 1
    assert lanes(sweep.SweepArguments(lanes=6, seeds_per_trial=4)) == 2
    assert num_agents == [2, 8]


def test_trials_that_are_too_short_to_learn_are_named(jaxrl_command, monkeypatch):
    def stop(*_, **__):
        raise ValueError("here the sweep would begin")

    monkeypatch.setattr(tuning, "sweep", stop)
    words = "sweep", "--algo", "dqn", "--env-id", "CartPole-v1", "--num-envs", "2", "--phases", "2"
    phases = "--phase-length", "400", "--phase-unit", "steps", "--set", "exploration_steps=700"
    shown = jaxrl_command(*words, *phases)
    assert "at most 800 steps, but agents learn nothing before step 1,000" in shown.stdout
    assert "exploration_steps" not in shown.stdout


def test_static_fields_get_a_lane_a_device(tmp_path, capsys):
    algo = jaxrl.a2c(jaxrl.make("CartPole-v1", num_envs=2))
    lanes = functools.partial(
        sweep.find_fastest_lanes, algo, jaxrl.A2CConfig(), tuning.GA3C_SPACE, run_dir=tmp_path
    )
    assert lanes(sweep.SweepArguments(lanes=16)) == jax.local_device_count()
    assert lanes(sweep.SweepArguments(lanes=16, strategy="vmap")) == 1
    assert "each value of num_steps has a program of its own" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--space", "gamma=Normal(0, 1)"],
            "'Normal(0, 1)' is not a distribution; choose from Uni",
        ),
        (["--space", "gamma"], "--space takes name=value, got 'gamma'"),
        (
            ["--space", "gamma=Uniform(a, 1)"],
            "is not a distribution: a is no value; a text has quotes, 'a'",
        ),
        (["--space", "gamma=Choice(0.9, 1)"], "write it as in Choice((1, 2))"),
        (["--set", "gamma=2"], "error: --set: PPOConfig.gamma must be within [0, 1], got 2"),
        (["--space", "gamma=Uniform(0, 2)"], "error: --space gamma must be within [0, 1], got 2"),
        (["--config"], "Missing value for argument '--config'"),
        (["--lanes", "0"], "error: --lanes must be an integer >= 1, got 0"),
        (["--trials", "0"], "error: --trials must be an integer >= 1, got 0"),
        (["--autotune", "--seeds-per-trial", "0"], "error: --seeds-per-trial must be an integer"),
        (["--eviction", "2"], "error: --eviction must be in [0, 1), got 2"),
        (["--phase-length", "0"], "error: --phase-length must be an integer >= 1, got 0"),
        (["--config", "none.yaml"], "none.yaml"),
        (["--objective", "mean", "mean"], "error: --objective takes one or more names, each once"),
        (["--set", "gamma=0.9"], "['gamma'] are searched"),
        (["--set", "gama=0.9"], "PPOConfig has no fields ['gama']"),
        (["--env-options", "num_envs=3"], "--env-options cannot set num_envs"),
        (["--strategy", "fast"], "strategy must be one of"),
        (["--preset", "fast"], "--preset must be one of"),
        (
            ["--scheduler", "pbt", "--trials", "8", "--lanes", "4"],
            "--lanes must be at least 8, got 4",
        ),
        (["--scheduler", "pb2", "--quantile", "0.6"], "--quantile must be at most 0.5, got 0.6"),
        (["--scheduler", "mfpbt"], "--periods must be below --phases=10"),
        (["--scheduler", "pbt", "--autotune"], "pbt trains all trials at the same time; leave"),
        (["--scheduler", "pbt", "--max-steps", "9"], "--max-steps must be left out, got 9"),
        (["--scheduler", "pbt", "--sampler", "tpe"], "must be 'random' or 'sobol', got 'tpe'"),
        (
            ["--scheduler", "pbt", "--videos-by", "gamma"],
            "--videos-by must be left out, got 'gamma'",
        ),
        (["--videos-by", "torso"], "error: --videos-by must be one of ('gamma',)"),
        (["--study", ""], "error: --study must be a string that is not empty"),
        (
            ["--trials", "2", "--final-trials", "3", "--final-share", "9"],
            "error: --final-trials must be at most 2, all trials, got 3",
        ),
        (["--seeds-per-trial", "0"], "error: --seeds-per-trial must be an integer >= 1, got 0"),
        (["--max-steps", "-1_000_000_000"], "error: --max-steps must be"),
    ],
)
def test_bad_flags_end_in_one_line(jaxrl_command, flags, message):
    finished = jaxrl_command("sweep", "--algo", "ppo", "--env-id", "CartPole-v1", *flags)
    assert finished.returncode == (2 if "Missing" in message else 1)
    assert message in finished.stderr


FILE = """
algo: ppo
env_id: CartPole-v1
lanes: 3
phase_length: 1e3
space:
  learning_rate: LogUniform(1e-5, 1e-2)
  num_epochs: Integer(1, 8)
set: {torso: mlp, hidden_sizes: [8, 4]}
autotune: false
"""


def test_a_file_gives_flags_their_values(monkeypatch, tmp_path):
    given = []

    def search(args):
        given.append(args)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "search", search)
    (tmp_path / "sweep.yaml").write_text(FILE)
    with pytest.raises(KeyboardInterrupt):
        sweep.main(["--config", str(tmp_path / "sweep.yaml"), "--lanes", "2"])
    (args,) = given
    assert (args.algo, args.lanes, args.phase_length, args.autotune) == ("ppo", 2, 1000, False)
    assert sweep.make_space(args) == {
        "learning_rate": tuning.LogUniform(1e-5, 1e-2), "num_epochs": tuning.Integer(1, 8)
    }  # fmt: skip
    config = sweep.set_fields(jaxrl.PPOConfig(), args.set)
    assert (config.torso, config.hidden_sizes) == ("mlp", (8, 4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("env_id: gymnasium/os:system", "--config: the environment of"),
        ("config: {gamma: 0.9}", "is of a run or sweep; give a YAML file of flags"),
        ("config: other.yaml", "--config can be given once"),
        ("- lanes", "must give flags their values"),
    ],
)
def test_other_files_are_refused(jaxrl_command, tmp_path, text, message):
    (tmp_path / "sweep.yaml").write_text(text)
    finished = jaxrl_command("sweep", "--config", "sweep.yaml")
    assert finished.returncode == 1
    assert message in finished.stderr
