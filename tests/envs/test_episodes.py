"""Episode statistics count whole episodes with raw scores, wherever rollouts begin and end."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.envs import episodes
from jaxrl.types import TimeStep


def time_steps(reward, terminated, truncated, first, raw_reward=None, game_over=None) -> TimeStep:
    """Return the time steps of one environment, `[T, 1]`."""

    def array(rows, dtype):
        return jnp.asarray(np.array(rows), dtype)[:, None]

    return TimeStep(
        obs=jnp.zeros((len(reward), 1)),
        reward=array(reward, jnp.float32),
        terminated=array(terminated, bool),
        truncated=array(truncated, bool),
        first=array(first, bool),
        raw_reward=None if raw_reward is None else array(raw_reward, jnp.float32),
        game_over=None if game_over is None else array(game_over, bool),
    )


update = jax.jit(episodes.update)


def count(steps: TimeStep, statistics=None) -> episodes.EpisodeStatistics:
    rows = [jax.tree.map(lambda x, t=t: x[t], steps) for t in range(len(steps.reward))]
    if statistics is None:
        statistics = episodes.start(rows.pop(0))
    for row in rows:
        statistics = update(statistics, row)
    return statistics


#                reset        dies      reset     cut       reset
REWARD = [       0, 1.0, 2.0, 3.0,      0, 5.0,   7.0,      0, 9.0]  # fmt: skip
TERMINATED = [   0, 0,   0,   1,        0, 0,     0,        0, 0]  # fmt: skip
TRUNCATED = [    0, 0,   0,   0,        0, 0,     1,        0, 0]  # fmt: skip
FIRST = [        1, 0,   0,   0,        1, 0,     0,        1, 0]  # fmt: skip
STEPS = time_steps(REWARD, TERMINATED, TRUNCATED, FIRST)


def test_only_ended_episodes_are_summed():
    statistics = count(STEPS)
    assert episodes.summarize(statistics) == {
        "episode_return_sum": 6 + 12,
        "episode_length_sum": 3 + 2,
        "episode_count": 2,
    }
    assert statistics.running_return == 9
    assert statistics.running_length == 1


def test_dropping_the_sums_keeps_the_running_episodes():
    for cut in range(1, len(REWARD)):
        early = count(jax.tree.map(lambda x, c=cut: x[:c], STEPS))
        rest = jax.tree.map(lambda x, c=cut: x[c:], STEPS)
        late = count(rest, episodes.forget_ended(early))
        both = jax.tree.map(lambda a, b: a + b, episodes.summarize(early), episodes.summarize(late))
        assert both == episodes.summarize(count(STEPS))
        assert late.running_return == 9
        assert late.running_length == 1


def test_the_raw_score_of_the_whole_game_counts():
    # The learner sees clipped rewards and an end at a lost life; the game's score is 90.
    steps = time_steps(
        reward=[0, 1, 1, 0, 1, 0],
        terminated=[0, 0, 1, 0, 1, 0],
        truncated=[0] * 6,
        first=[1, 0, 0, 1, 0, 1],
        raw_reward=[0, 10, 30, 0, 50, 0],
        game_over=[0, 0, 0, 0, 1, 0],
    )
    assert episodes.summarize(count(steps)) == {
        "episode_return_sum": 90,
        "episode_length_sum": 3,
        "episode_count": 1,
    }


def test_each_environment_has_its_own_statistics():
    both = jax.tree.map(lambda x: jnp.concatenate([x, x], axis=1), STEPS)
    second = (jnp.arange(len(REWARD)) > 4)[:, None]  # its first episode never ends
    apart = both._replace(terminated=both.terminated & jnp.hstack([second | True, second]))
    statistics = count(apart)
    assert statistics.count.tolist() == [2, 1]
    assert statistics.return_sum.tolist() == [18, 18]
    assert statistics.length_sum.tolist() == [5, 5]
    assert episodes.summarize(statistics)["episode_count"] == 3


def test_statistics_of_a_scan_have_one_dtype():
    start = episodes.start(jax.tree.map(lambda x: x[0], STEPS))
    statistics, _ = jax.lax.scan(lambda s, t: (episodes.update(s, t), None), start, STEPS)
    assert [x.dtype.name for x in statistics] == ["float32", "int32", "float32", "int32", "int32"]
