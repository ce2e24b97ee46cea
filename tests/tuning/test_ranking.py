"""The ranking of trials: best finite score first, ties by index, diverged and silent trials out."""

import pytest
from written_sweeps import trial

from jaxrl.tuning.ranking import (
    best_phase,
    front,
    late_objectives,
    late_score,
    leaderboard,
    ranked,
    schedule_of,
    values_in,
    winner,
)

pytestmark = pytest.mark.smoke


def test_trials_are_ranked_by_their_best_finite_score_then_by_index():
    trials = [
        trial(0, [1.0, 5.0, "-inf"]),
        trial(1, ["-inf"]),
        trial(2, [None, None]),
        trial(3, []),
        trial(4, [7, 2.0, None], "stopped", gamma=0.9),
        trial(5, [5.0]),
    ]
    rows = leaderboard(reversed(trials))
    assert [row["trial"] for row in rows] == [4, 0, 5]
    assert [row["best_score"] for row in rows] == [7.0, 5.0, 5.0]
    assert [row["last_score"] for row in rows] == [2.0, -float("inf"), 5.0]
    assert [row["phases"] for row in rows] == [3, 3, 1]
    assert rows[0]["status"] == "stopped"
    assert rows[0]["values"] == {"gamma": 0.9}
    assert ranked(trials)[0] is trials[4]


def test_finals_choose_the_winner_if_there_are_any():
    trials = [trial(0, [1.0, 9.0]), trial(1, [3.0])]
    rows = [{"trial": 0, "score": "-inf"}, {"trial": 1, "score": 3.0}]
    assert winner({"trials": trials}) is trials[0]
    assert winner({"trials": trials, "finals": []}) is trials[0]
    assert winner({"trials": trials, "finals": rows}) is rows[1]
    assert winner({"trials": trials, "finals": rows[:1]}) is None


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, 5.0, 5.0, 2.0, "-inf"], 2),
        ([None, 5.0, None], 1),
        ([None, "-inf"], 1),
        ([None, None], 0),
        ([], 0),
    ],
)
def test_the_best_phase_is_the_last_one_with_the_best_score(scores, expected):
    assert best_phase(trial(0, scores)) == expected


def test_the_front_has_the_means_of_the_last_two_scores_of_several_objectives():
    scores = {
        0: ([0.0, 4.0, 6.0], [9.0, 0.0, 2.0]),
        1: ([4.5, None], [1.0, None]),  # beaten by 0
        2: ([1.0], [2.0]),
        3: ([5.0], [1.0]),  # as good as 0
        4: ([9.0, "-inf"], [9.0, 9.0]),
        5: ([None], [None]),
    }
    trials = [
        trial(n, first, gamma=n) | {"objectives": [first, second]}
        for n, (first, second) in scores.items()
    ]
    rows = front({"objective": ["mean", "lowest"], "trials": trials[::-1]})
    assert [row["trial"] for row in rows] == [0, 3, 2]
    assert [row["objectives"] for row in rows] == [[5.0, 1.0], [5.0, 1.0], [1.0, 2.0]]
    assert rows[0]["values"] == {"gamma": 0}
    assert front({"objective": "mean_return", "trials": trials}) == []
    assert front({"objective": ["mean", "lowest"], "trials": []}) == []


# --- lineages ------------------------------------------------------------------------------------


def row(trial, *parents):
    changes = [{"parent": p, "values": {"x": 10 * trial + n}} for n, p in enumerate(parents, 1)]
    return {"trial": trial, "values": {"x": 10 * trial}, "changes": changes}


def test_a_schedule_follows_the_parents_back_to_the_first_phase():
    trials = [row(0, 0, 1), row(1, 2, 1), row(2, 2, 2)]
    found = schedule_of(trials, 0, 3)
    assert [(step["phase"], step["trial"]) for step in found] == [(0, 2), (1, 1), (2, 0)]
    assert [step["values"]["x"] for step in found] == [20, 11, 2]
    assert [step["trial"] for step in schedule_of(trials, 0, 2)] == [0, 0]


def test_an_agent_brings_its_scores_with_it():
    trials = [
        row(0, 0, 1) | {"scores": [1.0, "-inf", 7.0], "objectives": [[0.0] * 3, [1.0, 2.0, 8.0]]},
        row(1, 1, 1) | {"scores": [2.0, 5.0, None], "objectives": [[0.0] * 3, [3.0, 6.0, 9.0]]},
        {"trial": 2, "values": {}, "scores": [9.0, 3.0]},  # no explorer changed it
    ]
    assert [late_score(trials, trial) for trial in trials] == [6.0, 3.5, 6.0]
    assert late_objectives(trials, trials[0]) == [0.0, 7.0]


@pytest.mark.parametrize(("phase", "value"), [(0, 10), (1, 11), (2, 12), (9, 12)])
def test_values_change_from_phase_to_phase(phase, value):
    assert values_in(row(1, 1, 1), phase) == {"x": value}


def test_values_of_trials_that_no_explorer_changed_stay():
    assert values_in({"trial": 0, "values": {"x": 1}}, 5) == {"x": 1}
