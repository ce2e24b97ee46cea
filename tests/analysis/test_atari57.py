"""Human-normalized scores: games by the ids of environments, and the references."""

import pytest

from jaxrl.analysis import atari57


@pytest.mark.parametrize(
    ("env_id", "game"),
    [
        ("envpool/Pong-v5", "Pong"),
        ("Pong-v5", "Pong"),
        ("ALE/Pong-v5", "Pong"),
        ("gymnasium/ALE/UpNDown-v5", "UpNDown"),
        ("PongNoFrameskip-v4", "Pong"),
        ("Pong", "Pong"),
        ("envpool/Pong3d-v5", None),
        ("gymnax/Breakout-MinAtar", None),
        ("gymnax/Pong-misc", None),
        ("gymnax/CartPole-v1", None),
        ("", None),
    ],
)
def test_environments_name_their_games(env_id, game):
    assert atari57.game_of(env_id) == game


def test_human_normalized_scores_are_those_of_papers():
    assert atari57.human_normalized("envpool/Pong-v5", [-20.7, 14.6]) == pytest.approx([0, 1])
    # Mnih et al. 2015 (extended data table 2) give DQN 1327 % of a human on Breakout with a human
    # score of 31.8. With the 30.5 of Wang et al., the same 401.2 points are 1387 %.
    assert atari57.human_normalized("Breakout-v5", 401.2) == pytest.approx(13.87, abs=0.005)
    with pytest.raises(ValueError, match="'CartPole-v1' is not one of the 57 Atari games"):
        atari57.human_normalized("CartPole-v1", 1.0)


def test_all_57_games_exist_in_envpool():
    assert len(atari57.REFERENCES) == 57
    assert all(human > random for random, human in atari57.REFERENCES.values())
    registry = pytest.importorskip("envpool.registration").registry
    assert [game for game in atari57.REFERENCES if f"{game}-v5" not in registry.specs] == []
