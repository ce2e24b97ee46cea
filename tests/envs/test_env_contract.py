"""The contract of `jaxrl.types.Env`, checked on environments of every backend."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from env_cases import (
    ATARI,
    CASES,
    HOST,
    N,
    actions_of,
    assert_same,
    differ,
    member,
    needs_new_envpool,
    play,
    trajectory_of,
)

import jaxrl
from jaxrl.envs.check import jit_play, random_actions
from jaxrl.envs.host import callback
from jaxrl.spaces import Discrete

P = 2  # members of a population, and devices
LIMITED = [
    "gymnax-cartpole-limit", "gymnax-pendulum-limit", "envpool-cartpole-limit",
    "envpool-pendulum-limit", "gymnasium-pendulum-limit", "envpool-pong-limit",
]  # fmt: skip
VARIED = ["gymnax-pendulum-limit", "probe-contextual", "envpool-cartpole", "gymnasium-cartpole"]
BREAKOUT = [name for name in CASES if "breakout" in name]
PHYSICS = [name for name in CASES if "box2d" in name or "mujoco" in name]


def marked(names):
    """Leave physics to releases: the other cases have the same adapters."""
    return [pytest.param(x, marks=pytest.mark.exhaustive) if x in PHYSICS else x for x in names]


all_cases = pytest.mark.parametrize("name", marked(CASES))


# --- time steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "gymnasium-mujoco-limit",
        *marked(name for name in CASES if name not in ("gymnasium-mujoco-limit", *BREAKOUT)),
        *(pytest.param(n, marks=pytest.mark.slow) for n in BREAKOUT if "envpool" not in n),
        pytest.param("envpool-breakout-life", marks=pytest.mark.exhaustive),  # Pong's adapter
    ],
)
def test_the_check_for_adapters_passes(name):
    jaxrl.check_env(CASES[name].make(), CASES[name].num_steps)


@all_cases
def test_episodes_end_as_declared(name):
    case, steps = CASES[name], trajectory_of(name)
    assert steps.terminated.any() == (case.ends in ("terminated", "both"))
    assert steps.truncated.any() == (case.ends in ("truncated", "both"))
    if name in ATARI:
        raw_reward, game_over = np.asarray(steps.raw_reward), np.asarray(steps.game_over)
        assert (raw_reward.dtype, game_over.dtype) == (np.float32, bool)
        assert (raw_reward[steps.first] == 0).all()
    if case.length:
        steps_and_resets = np.arange(case.num_steps + 1) % (case.length + 1)
        ended = (steps.terminated | steps.truncated)[:, 0]
        np.testing.assert_array_equal(ended, steps_and_resets == case.length)


@all_cases
def test_the_step_after_an_end_discards_the_action(name):
    env, steps, actions = CASES[name].make(), trajectory_of(name), actions_of(name)
    others = random_actions(env, 2, len(actions))
    if isinstance(env.action_space, Discrete):
        others = (actions + 1) % env.action_space.n
    if isinstance(env.action_space, jaxrl.MultiDiscrete):
        others = (actions + 1) % np.array(env.action_space.sizes)
    resets = steps.first[1:].reshape(*steps.first[1:].shape, *(1,) * (actions.ndim - 2))
    changed = np.where(resets, others, actions)
    assert differ(changed, actions)
    assert_same(play(name, changed), steps)


@pytest.mark.parametrize("name", [name for name in LIMITED if "pong" not in name])
def test_every_episode_starts_in_another_state(name):
    steps = trajectory_of(name)
    starts = steps.obs[steps.first]
    assert len(starts) > 2 * N
    assert len(np.unique(starts, axis=0)) == len(starts)


@pytest.mark.parametrize("name", LIMITED)
def test_a_truncation_shows_the_true_last_observation(name):
    case, steps, actions = CASES[name], trajectory_of(name), actions_of(name)
    unlimited = {k: v for k, v in case.options.items() if not k.startswith("max_")}
    env = jaxrl.make(case.id, N, **unlimited)
    expected = jit_play(env, jax.random.key(0), actions[: case.length])
    assert steps.truncated[case.length].all()
    assert not expected.truncated.any()
    assert_same(steps.obs[: case.length + 1], expected.obs, exact=False)
    assert differ(steps.obs[case.length + 1], steps.obs[case.length])


@pytest.mark.parametrize(
    "id", ["gymnax/Pendulum-v1", "envpool/MountainCarContinuous-v0", "probe/Target-v0"]
)
def test_box_actions_are_clipped(id):
    env: Any = jaxrl.make(id, N)
    low, high = env.action_space.bounds()
    limits = np.stack([np.broadcast_to(x, (N, *low.shape)) for x in (low, high)])
    beyond = jit_play(env, jax.random.key(0), 50 * limits)
    assert_same(beyond, jit_play(env, jax.random.key(0), limits))
    assert differ(beyond, jit_play(env, jax.random.key(0), 0.5 * limits))


# --- keys and transformations --------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", marked(name for name in CASES if name not in ("probe-time-limit", "envpool-minigrid"))
)
def test_keys_and_environments_of_a_batch_differ(name):
    other = play(name, actions_of(name), seed=7)
    assert differ(other.obs, trajectory_of(name).obs)
    first, second = (jax.tree.map(lambda x, i=i: x[:, i], other.obs) for i in (0, 1))
    assert differ(first, second)


@pytest.mark.parametrize("name", VARIED)
def test_eager_jitted_and_scanned_steps_agree(name):
    env, actions, scanned = CASES[name].make(), actions_of(name), trajectory_of(name)
    init_key, step_key = jax.random.split(jax.random.key(0))
    keys = jax.random.split(step_key, len(actions))
    traces = []

    def step_and_count(key, state, action):
        traces.append(key)
        return env.step(key, state, action)

    for step, num_steps in ((env.step, 2), (jax.jit(step_and_count), len(actions[:9]))):
        state, timestep = env.init(init_key)
        for t in range(num_steps):
            assert_same(timestep, member(scanned, t), exact=False)
            state, timestep = step(keys[t], state, actions[t])
    assert len(traces) == 1


@pytest.mark.parametrize(
    "name",
    [
        "envpool-cartpole",
        "gymnasium-cartpole",
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in ("envpool-breakout-life", "gymnasium-breakout-life")
        ),
    ],
)
def test_a_vmapped_member_sees_what_it_would_see_alone(name):
    env = CASES[name].make()
    keys = jax.random.split(jax.random.key(3), P)
    actions = np.stack([actions_of(name), actions_of(name)[::-1]])
    population = jax.jit(jax.vmap(functools.partial(jit_play, env)))(keys, actions)
    for i in range(P):
        alone = jit_play(env, keys[i], actions[i])
        assert_same(member(population, i), alone, exact=False)


@pytest.mark.parametrize(
    ("name", "transform"),
    [
        ("envpool-cartpole", "pmap"),
        ("envpool-cartpole", "shard_map"),
        ("gymnasium-cartpole", "shard_map"),
        ("probe-contextual", "shard_map"),
    ],
)
def test_every_device_steps_its_own_environments(name, transform):
    if jax.device_count() < P:
        pytest.skip("needs two devices")
    env, actions = CASES[name].make(), actions_of(name)
    keys = jax.random.split(jax.random.key(3), P)
    before = set(callback._groups)

    def run(key):
        return jit_play(env, key, actions)

    def run_shard(keys):
        return jax.tree.map(lambda x: x[None], run(keys[0]))

    if transform == "pmap":
        sharded = jax.pmap(run)
    else:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:P]), ("device",))
        spec = jax.sharding.PartitionSpec("device")
        sharded = jax.jit(
            jax.shard_map(run_shard, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        )
    steps = jax.block_until_ready(sharded(keys))
    new = [callback._groups[n] for n in set(callback._groups) - before]
    assert [len(group.seeds) for group in new] == ([N] * P if name in HOST else [])
    for device in range(P):
        alone = jit_play(env, keys[device], actions)
        assert_same(member(steps, device), alone, exact=False)


# --- environments are values ---------------------------------------------------------------------


@all_cases
def test_an_environment_is_a_value_with_evaluation_and_options(name):
    env, again = CASES[name].make(), CASES[name].make()
    assert env == again
    assert hash(env) == hash(again)
    assert env != CASES[name].make(N + 1)
    assert env == jaxrl.make(env.id, env.num_envs, **env.options)
    assert (env != jaxrl.make(env.id, env.num_envs)) == bool(env.options)
    assert isinstance(env, jaxrl.Env)
    assert env.checkpointable == (name not in HOST)
    evaluation = env.for_evaluation(5)
    assert (evaluation.id, evaluation.num_envs) == (env.id, 5)
    assert evaluation.observation_space == env.observation_space
    assert evaluation.options == env.options


# --- pictures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "id",
    [
        pytest.param("envpool/HalfCheetah-v4", marks=needs_new_envpool),
        pytest.param("envpool/D1Basic-v1", marks=needs_new_envpool),
        "envpool/gfootball/academy_empty_goal_close-v1",
        "envpool/Jumanji/Tetris-v0",
        "envpool/Pong-v5",
        "gymnasium/CartPole-v1",
        "gymnasium/ALE/Pong-v5",
    ],
)
def test_pictures_of_every_simulator_change(id):
    env = jaxrl.make(id, N).for_rendering()
    state, _ = env.init(jax.random.key(0))
    first = env.render(state)
    assert (first.dtype, first.shape[2]) == (np.uint8, 3)
    assert min(first.shape[:2]) > 100
    step = jax.jit(env.step)
    for action in random_actions(env, 0, 30):
        state, _ = step(jax.random.key(0), state, action)
    assert (env.render(state) != first).any()
