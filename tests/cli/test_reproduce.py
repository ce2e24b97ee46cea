"""`jaxrl reproduce`: repeat recorded runs, and judge their scores."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from written_runs import write_run

import jaxrl
from jaxrl.analysis.records import describe_scores
from jaxrl.cli.play import play_episodes
from jaxrl.cli.reproduce import LEAST_MARGIN, agreement, judge, main, repeat, scores_of
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.directory import read_summary

ROOT = Path(__file__).parents[2]
CONFIG = jaxrl.PPOConfig(num_steps=32, hidden_sizes=(4,), num_minibatches=1, num_epochs=1)


def greedy_evaluation(run_dir, episodes):
    scores = play_episodes(jaxrl.load_policy(run_dir), episodes, seed=0, greedy=True)
    return describe_scores(np.asarray(scores.episode_return))


@pytest.fixture
def path(tmp_path):
    """Return the path of a record."""
    path = tmp_path / "experiments" / "results" / "short.json"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def content(tmp_path):
    """Return the record of two short runs."""
    algo, entries = jaxrl.ppo(jaxrl.make("CartPole-v1", 4)), []
    for seed in (1, 2):
        run_dir = tmp_path / f"recorded-{seed}"
        jaxrl.run(
            algo, CONFIG, seed=seed, total_steps=1280, run_dir=run_dir, num_evaluations=0,
            progress_bar=False,
        )  # fmt: skip
        evaluation = greedy_evaluation(run_dir, 5)
        entries.append(
            {
                "manifest": manifests.read(run_dir),
                "summary": read_summary(run_dir),
                "evaluation": {"greedy": True} | evaluation,
            }
        )
    return {"random_policy": {"mean_return": 22.0}, "runs": entries}


@pytest.mark.slow
def test_a_record_is_repeated_exactly_and_a_false_one_is_refused(
    path, content, jaxrl_command, tmp_path
):
    path.write_text(json.dumps(content))
    repeated = jaxrl_command("reproduce", "short")
    assert repeated.returncode == 0, repeated.stderr
    assert repeated.stdout.count(": reproduced") == 2
    for seed, entry in zip((1, 2), content["runs"], strict=True):
        run_dir = tmp_path / "runs" / "reproduce" / "short" / f"seed{seed}"
        assert read_summary(run_dir)["mean_return"] == entry["summary"]["mean_return"]
        assert greedy_evaluation(run_dir, 5)["mean_return"] == entry["evaluation"]["mean_return"]
        entry["evaluation"]["mean_return"] += 5000
    path.write_text(json.dumps(content))
    false = jaxrl_command("reproduce", path)  # the runs are there already
    assert false.returncode == 1
    assert [line.split()[0] for line in false.stdout.splitlines() if "NOT" in line] == ["greedy"]
    assert "what it has trained is not repeated" in false.stdout
    one = jaxrl_command("reproduce", path, "--seeds", 3)
    assert "has no seeds [3]; it has [1, 2]" in one.stderr
    run_dir = tmp_path / "runs" / "reproduce" / "short" / "seed1"
    manifest = manifests.read(run_dir)
    manifests.write(run_dir, manifest | {"versions": manifest["versions"] | {"jax": "0.1"}})
    older = jaxrl_command("reproduce", path)
    assert "with other versions or another commit, so its score is not today's" in older.stderr


def test_damaged_records_are_refused_by_name(path, jaxrl_command, tmp_path):
    run_dir = write_run(tmp_path / "run")
    others = {"log_every": 1, "num_evaluations": 0, "eval_episodes": 1}
    run = {"manifest": manifests.read(run_dir) | others, "summary": {"mean_return": 20.0}}
    content = {"random_policy": {"mean_return": 22.0}, "runs": [run, run]}
    path.write_text(json.dumps(content))
    twice = jaxrl_command("reproduce", path)
    assert "two of its runs have the seed 1" in twice.stderr
    del content["runs"][0]["manifest"]["env"]
    path.write_text(json.dumps(content))
    for command in (("short",), (path,)):
        refused = jaxrl_command("reproduce", *command)
        assert refused.returncode == 1
        assert "short.json is damaged: a run's manifest: it lacks env" in refused.stderr
    missing = jaxrl_command("reproduce", "nothing")
    assert "nothing.json" in missing.stderr


def test_a_record_that_does_not_exist_is_refused_by_its_path(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"there is no record .*none\.json; give a path, or"
    ):
        main(["none", "--results", str(tmp_path)])


def test_a_record_of_something_else_is_refused(tmp_path):
    (tmp_path / "lags.json").write_text(json.dumps({"manifest": {}, "settings": []}))
    with pytest.raises(ValueError, match=r"lags\.json is no record of runs, .* it has no random"):
        main(["lags", "--results", str(tmp_path)])


def test_the_interval_has_the_coverage_that_it_claims():
    """Of 2,000 pairs of normal samples, the mean of the second lies within the first's interval."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        recorded, new = rng.normal(100, 15, 5), rng.normal(100, 15, 3)
        bounds = agreement(3, list(recorded), 0.0)
        hits += bounds.low <= new.mean() <= bounds.high
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)


def test_scores_without_spread_have_the_least_margin():
    bounds = agreement(2, [500.0, 500.0, 500.0], 20.0)
    assert bounds == pytest.approx((500 - LEAST_MARGIN * 480, 500 + LEAST_MARGIN * 480))


@pytest.mark.parametrize(("recorded", "random", "low"), [(7.0, 1.0, 4.0), (1.0, 2.0, -np.inf)])
def test_one_score_agrees_with_those_from_half_way_on(recorded, random, low):
    assert agreement(1, [recorded], random) == (low, np.inf)


def test_greedy_episodes_that_are_cut_short_have_no_score(monkeypatch, tmp_path, capsys):
    run_dir = write_run(tmp_path / "recorded")
    others = {"log_every": 1, "num_evaluations": 0, "eval_episodes": 1}
    recorded = {"manifest": manifests.read(run_dir) | others, "evaluation": {"episodes": 2}}
    done = SimpleNamespace(state=None, interrupted=False, summary={"mean_return": 3.0})
    cut = SimpleNamespace(episode_return=[1.0, np.nan])
    for name, answer in (("run", done), ("load_policy", None), ("play_episodes", cut)):
        monkeypatch.setattr(f"jaxrl.cli.reproduce.{name}", lambda *_, answer=answer, **__: answer)
    algo = SimpleNamespace(env=None)
    monkeypatch.setattr(manifests, "rebuild", lambda *_, **__: (algo, None))
    repeated = repeat(recorded, tmp_path / "new", tmp_path / "x.json", True, False)
    assert np.isnan(scores_of(repeated)[1])
    assert "1 of 2 greedy episodes of" in (out := capsys.readouterr().out)
    assert "--no-greedy leaves these episodes out" in out


def test_a_seed_below_the_random_policy_agrees_with_any_score(capsys):
    assert judge("greedy episodes", [0.5], [1.0], 2.0) == 0
    assert "no better than the random policy, so any score agrees: rep" in capsys.readouterr().out


@pytest.mark.parametrize(("score", "status"), [(3.9, 1), (4.1, 0), (np.nan, 1)])
def test_a_record_of_one_seed_can_fail(score, status, capsys):
    assert judge("greedy episodes", [score], [7.0], 1.0) == status
    assert "greedy episodes: mean" in (out := capsys.readouterr().out)
    assert ("NOT reproduced" in out) == bool(status)


def test_records_without_greedy_episodes_have_one_measure():
    run = {"summary": {"mean_return": 3}}
    assert scores_of(run)[0] == 3
    assert np.isnan(scores_of(run)[1])


@pytest.mark.learning
@pytest.mark.usefixtures("optimized")
def test_a_recorded_result_is_reproduced(jaxrl_command):
    """With the versions of packages that are installed, not those of the record."""
    results = ROOT / "experiments" / "results"
    repeated = jaxrl_command("reproduce", "cartpole-a2c", "--results", results, "--seeds", 1)
    assert repeated.returncode == 0, repeated.stdout
    assert repeated.stdout.count(": reproduced") == 2
