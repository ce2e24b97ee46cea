"""Several objectives in a sweep: as in one program, after kills, of other workers, in the study."""

import contextlib
import sqlite3

import jax
import numpy as np
import pytest
from shared_studies import stored_trials
from sweep_runs import (
    SEED,
    KilledError,
    kill_after_reports,
    outcome,
    run,
    search_of,
    stop_after,
)

from jaxrl.tuning import (
    Finals,
    HyperTrick,
    SuccessiveHalving,
    objectives,
    pareto_front,
    read_study,
)
from jaxrl.tuning.ranking import front
from jaxrl.tuning.studies.heartbeat import requeue
from jaxrl.tuning.studies.storage import change_state
from jaxrl.tuning.sweeps import sweep_file

SEVERAL = {"z": objectives.lowest_return, "a": objectives.mean_return}  # not in the order of names
SCORING = {"objective": SEVERAL, "seeds_per_trial": 2}
RULE = HyperTrick(10, 3)


@pytest.mark.slow
def test_they_are_those_of_one_program(tmp_path):
    finals = Finals(top=2, repeats=2, share=0.5)
    expected = jax.jit(search_of(RULE, finals=finals, **SCORING))(jax.random.key(SEED))
    url = f"sqlite:///{tmp_path / 'study.db'}"
    result = run(tmp_path / "x", RULE, storage=url, study_name="s", finals=finals, **SCORING)
    stored = stored_trials(url, "s")
    assert result.summary["objective"] == ["z", "a"]
    for trial in outcome(result):
        index, (lowest, mean) = trial["trial"], trial["objectives"]
        assert lowest == trial["scores"]
        for name, scores in zip("za", (lowest, mean), strict=True):
            found = expected.objectives[name][index, : len(scores)]
            np.testing.assert_allclose(scores, found, rtol=1e-4)
        for phase, scores in enumerate(zip(lowest, mean, strict=True)):
            named = stored[index].user_attrs[f"scores of phase {phase}"]
            assert tuple(named.items()) == (("z", scores[0]), ("a", scores[1]))
        assert list(stored[index].intermediate_values.values()) == lowest
    assert sweep_file.read(tmp_path / "x")["trials"] == outcome(result)
    assert read_study(url, "s")["trials"] == outcome(result)
    in_front = {row["trial"] for row in front(result.summary)}
    assert in_front == {*np.flatnonzero(pareto_front(expected.late_objectives)).tolist()}
    assert expected.finals is not None
    means = [np.asarray(x)[..., -2:].mean((1, 2)) for x in expected.finals.objectives.values()]
    rows = {row["trial"]: row["objectives"] for row in result.summary["finals"]}
    found = [rows[trial] for trial in expected.finals.trial.tolist()]
    np.testing.assert_allclose(found, np.stack(means, 1), rtol=1e-4)


def test_a_killed_sweep_resumes_with_them_and_refuses_others(tmp_path, monkeypatch):
    expected = run(tmp_path / "whole", RULE, **SCORING)
    for chunks, checkpoint_seconds in ((2, 0.0), (3, 1e9)):
        with monkeypatch.context() as patch:
            kill_after_reports(patch, chunks)
            resume = (tmp_path / "cut").exists()
            with pytest.raises(KilledError):
                run(
                    tmp_path / "cut", RULE, resume=resume, checkpoint_seconds=checkpoint_seconds,
                    **SCORING,
                )  # fmt: skip
    reverse = dict(reversed(SEVERAL.items()))
    with pytest.raises(ValueError, match=r"objective: \['z', 'a'\] -> \['a', 'z'\]"):
        run(tmp_path / "cut", RULE, resume=True, **SCORING | {"objective": reverse})
    result = run(tmp_path / "cut", RULE, resume=True, **SCORING)
    assert outcome(result) == outcome(expected)


@pytest.mark.exhaustive
def test_another_worker_knows_those_of_the_trials_that_it_continues(tmp_path, monkeypatch):
    scheduler, shared = SuccessiveHalving(6, 4, 2), f"sqlite:///{tmp_path / 'study.db'}"
    arguments = SCORING | {"num_lanes": 2, "storage": shared, "study_name": "s"}
    expected = run(tmp_path / "whole", scheduler, num_lanes=2, **SCORING)
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        stopped = run(tmp_path / "a", scheduler, worker="a", heartbeat_seconds=1, **arguments)
    assert {"paused", "ready"} & {trial["status"] for trial in outcome(stopped)}
    late = run(tmp_path / "b", scheduler, worker="b", heartbeat_seconds=1, **arguments)
    assert read_study(shared)["trials"] == outcome(expected)
    whole = {trial["trial"]: trial for trial in outcome(expected)}
    own = {trial["trial"] for trial in outcome(late)}
    assert own & {trial["trial"] for trial in outcome(stopped)}  # it continues some
    assert outcome(late) == [whole[trial] for trial in sorted(own)]


def test_the_repetition_of_a_lost_trial_has_them(studies):
    first, second = studies("a"), studies("b")
    index, _ = first.claim(())
    first.report(index, 0, 1.0, {"z": 1.0, "a": None})
    lost = first._claimed[index]
    change_state(first._storage, lost, "FAIL")
    assert second.objectives("za", {index: 1}) == {}
    requeue(first._study, first._study.trials[lost.number])
    claimed, _ = second.claim(())
    second.fill(claimed, [1.0])
    assert second.report(claimed, 0, 7.0, {"z": 7.0, "a": 7.0}) == 1.0
    assert claimed == index
    assert second.objectives("za", {index: 1}) == {index: [[1.0], [None]]}
    assert second.report(claimed, 1, 2.0, {"z": 2.0, "a": "-inf"}) == 2.0
    assert second.objectives("za", {index: 2}) == {index: [[1.0, 2.0], [None, "-inf"]]}


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("delete from trial_user_attributes where key = 'scores of phase 0'", "got None"),
        ("update trial_user_attributes set value_json = replace(value_json, '\"a\"', '\"b\"')",
         "it lacks a"),
        ("update trial_user_attributes set value_json = '{\"z\": \"x\", \"a\": 1.0}' "
         "where key = 'scores of phase 1'", "z must be a number, null .*, got 'x'"),
    ],
)  # fmt: skip
def test_damaged_ones_are_one_error(ended, tmp_path, statement, message):
    path = tmp_path / "study.db"
    path.write_bytes((ended / "x" / "study.db").read_bytes())
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)
    with pytest.raises(ValueError, match=f"(?s)is damaged.*has bad objectives: .*{message}"):
        read_study(f"sqlite:///{path}")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A directory with a sweep by several objectives that has ended."""
    directory = tmp_path_factory.mktemp("ended")
    run(directory / "x", HyperTrick(2, 2), storage=None, **SCORING)
    return directory


def test_a_single_objective_stores_nothing_more(tmp_path):
    result = run(tmp_path / "x", HyperTrick(2, 2), storage=None)
    assert result.summary["objective"] == "mean_return"
    assert not any("objectives" in trial for trial in outcome(result))
    url = f"sqlite:///{tmp_path / 'x' / 'study.db'}"
    for trial in stored_trials(url, "x"):
        assert not [key for key in trial.user_attrs if key.startswith("scores")]
    assert front(result.summary) == []
