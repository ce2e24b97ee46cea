"""The tables of a sweep, as text."""

from written_sweeps import sweep_of, trial

from jaxrl.analysis import sweep_tables


def test_the_front_has_its_trials_by_the_first_objective():
    trials = [trial(n, [own], gamma=0.9) for n, own in enumerate((1.0, 2.0, 0.0))]
    for own, second in zip(trials, (5.0, 4.125, 4.5), strict=True):
        own["objectives"] = [own["scores"], [second]]
    held = sweep_of(trials, space={"gamma": {}})
    table = sweep_tables.front_table(held | {"objective": ["mean", "lowest"]})
    assert table.head == ["trial", "mean", "lowest", "status", "gamma"]
    assert table.rows == [
        ["1", "2", "4.125", "completed", "0.9"],
        ["0", "1", "5", "completed", "0.9"],
    ]
    assert not sweep_tables.front_table(held | {"objective": "mean_return"}).rows


def test_finals_stand_beside_the_scores_of_the_search():
    finals = [
        {"trial": 3, "values": {}, "scores": [1.0, 2.0], "score": 1.5, "search": 7.123456789},
        {"trial": 1, "values": {}, "scores": ["-inf"], "score": "-inf", "search": 3.0},
    ]
    table = sweep_tables.finals_table(sweep_of([], finals=finals))
    assert table.head == ["trial", "search, last two", "finals, mean (95%)", "runs"]
    assert table.rows == [
        ["3", "7.12346", "1.50 (-4.85 to 7.85)", "1, 2"],
        ["1", "3", "no score", "no score"],
    ]
    in_finals = "1.50 (-4.85 to 7.85) in the finals"
    assert sweep_tables.winner_scores(finals[0]) == f"{in_finals}, 7.12346 in the search (last two)"
    assert sweep_tables.winner_scores(trial(0, [3.0, 2.0])) == "3"


def test_small_scores_of_finals_keep_their_digits():
    scores = {(0.01, 0.02, 0.012): "0.0140 (0.0009 to 0.0271)", (0.3,): "0.300", (0.0,): "0.00"}
    for runs, text in scores.items():
        row = {"trial": 3, "values": {}, "scores": list(runs), "score": 1.0, "search": 1.0}
        assert sweep_tables.winner_scores(row).startswith(f"{text} in the finals")


def test_trials_without_a_score_are_not_in_the_leaderboard():
    silent, diverged = trial(0, [None], core=[64]), trial(1, [None, 2.5, "-inf"], core=[64])
    held = sweep_of([silent, diverged], space={"core": {}, "gamma": {}})
    table = sweep_tables.leaderboard_table(held)
    assert table.head[:3] == ["trial", "best score", "last score"]
    assert table.rows == [["1", "2.5", "diverged", "3", "completed", "[64]", ""]]
    assert sweep_tables.leaderboard_table(held | {"trials": [silent]}).rows == []
