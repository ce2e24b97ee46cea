"""One contract, every backend: what `jaxrl.types.Env` promises, checked on each adapter."""

import functools
import importlib.metadata
from typing import Any, NamedTuple

import envpool
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.utils import load_mnist
from packaging.version import Version

import jaxrl
from jaxrl.envs import episodes
from jaxrl.envs import gymnax as gymnax_adapter
from jaxrl.envs.check import play, random_actions
from jaxrl.envs.host import callback
from jaxrl.envs.host.callback import HostState
from jaxrl.types import Box, Discrete

# envpool 1.2.5's ViZDoom may wait for ever when a pool is made in a process with many threads, and
# its MuJoCo needs OpenGL to draw.
HAS_NEW_ENVPOOL = Version(importlib.metadata.version("envpool")) >= Version("1.2.7")
NEW_ENVPOOL = pytest.mark.skipif(not HAS_NEW_ENVPOOL, reason="needs envpool >= 1.2.7")

N = 3  # environments stepped together
P = 2  # members of a population, and devices


class Case(NamedTuple):
    id: str
    options: dict[str, Any]
    num_steps: int
    ends: str  # how its episodes end within `num_steps`: "terminated", "truncated" or "both"
    length: int = 0  # of its episodes, where that is fixed

    def make(self, num_envs: int = N) -> Any:
        return jaxrl.make(self.id, num_envs, **self.options)


SMALL = {"img_height": 36, "img_width": 36}
LIFE = SMALL | {"episodic_life": True, "reward_clip": True}
CASES = {
    "gymnax-cartpole": Case("gymnax/CartPole-v1", {}, 60, "terminated"),
    "gymnax-cartpole-limit": Case(
        "gymnax/CartPole-v1", {"max_steps_in_episode": 5}, 14, "truncated", 5
    ),
    "gymnax-breakout": Case("gymnax/Breakout-MinAtar", {"max_steps_in_episode": 12}, 60, "both"),
    "gymnax-pendulum-limit": Case(
        "gymnax/Pendulum-v1", {"max_steps_in_episode": 6}, 15, "truncated", 6
    ),
    "envpool-cartpole": Case("envpool/CartPole-v1", {}, 60, "terminated"),
    "envpool-cartpole-limit": Case(
        "envpool/CartPole-v1", {"max_episode_steps": 5}, 14, "truncated", 5
    ),
    "envpool-pendulum-limit": Case(
        "envpool/Pendulum-v1", {"max_episode_steps": 6}, 15, "truncated", 6
    ),
    "envpool-pong-limit": Case(
        "envpool/Pong-v5", LIFE | {"max_episode_steps": 7}, 18, "truncated", 7
    ),
    "envpool-breakout-life": Case("envpool/Breakout-v5", LIFE, 100, "terminated"),
    "envpool-mujoco-limit": Case(
        "envpool/HalfCheetah-v4", {"max_episode_steps": 6}, 15, "truncated", 6
    ),
    "envpool-box2d": Case("envpool/LunarLander-v2", {}, 130, "terminated"),
    "envpool-minigrid": Case(
        "envpool/MiniGrid-DoorKey-5x5-v0", {"max_episode_steps": 6}, 15, "truncated", 6
    ),
    "envpool-vizdoom-limit": Case(
        "envpool/D1Basic-v1", {"max_episode_steps": 6} | SMALL, 15, "truncated", 6
    ),
    "envpool-jumanji": Case("envpool/Jumanji/Minesweeper-v0", {}, 60, "terminated"),
    "maze-small": Case("maze/FindAndReturn-v0", {"size": 5, "max_episode_steps": 30}, 150, "both"),
    "maze-limit": Case("maze/FindAndReturn-v0", {"max_episode_steps": 6}, 15, "truncated", 6),
    "gymnasium-cartpole": Case("gymnasium/CartPole-v1", {}, 60, "terminated"),
    "gymnasium-pendulum-limit": Case(
        "gymnasium/Pendulum-v1",
        {"max_episode_steps": 6, "vectorization_mode": "sync"},
        15,
        "truncated",
        6,
    ),
    "gymnasium-box2d": Case(
        "gymnasium/LunarLander-v3", {"vectorization_mode": "sync"}, 130, "terminated"
    ),
    "gymnasium-mujoco-limit": Case(
        "gymnasium/HalfCheetah-v5",
        {"max_episode_steps": 6, "vectorization_mode": "sync"},
        15,
        "truncated",
        6,
    ),
    "gymnasium-tuple": Case(
        "gymnasium/Blackjack-v1", {"vectorization_mode": "sync"}, 20, "terminated"
    ),
    "gymnasium-breakout-life": Case(
        "gymnasium/ALE/Breakout-v5",
        {"episodic_life": True, "reward_clip": True, "img_height": 36, "img_width": 36},
        100,
        "terminated",
    ),
    "probe-contextual": Case("probe/Contextual-v0", {}, 8, "terminated", 1),
    "probe-discounted": Case("probe/Discounted-v0", {}, 9, "terminated", 2),
    "probe-episode": Case("probe/Episode-v0", {"limit": 3}, 10, "terminated", 3),
    "probe-time-limit": Case("probe/TimeLimit-v0", {"limit": 4}, 12, "truncated", 4),
    "probe-target": Case("probe/Target-v0", {}, 8, "terminated", 1),
}
if not HAS_NEW_ENVPOOL:
    del CASES["envpool-vizdoom-limit"]
HOST = [name for name in CASES if name.startswith(("envpool", "gymnasium"))]
ATARI = ("envpool-pong-limit", "envpool-breakout-life", "gymnasium-breakout-life")
LIMITED = ["gymnax-cartpole", "gymnax-pendulum", "envpool-cartpole", "envpool-pendulum"]
LIMITED += ["gymnasium-pendulum"]
LIMITED = [f"{name}-limit" for name in LIMITED] + ["envpool-pong-limit"]
ALIKE = ("discounted", "episode", "time", "minigrid")  # whatever the key, or nearly
RANDOM = [name for name in CASES if name.split("-")[1] not in ALIKE]
VARIED = ["gymnax-pendulum-limit", "probe-contextual", "envpool-cartpole"]
VARIED += ["envpool-pendulum-limit", "envpool-breakout-life"]
VARIED += ["gymnasium-cartpole", "gymnasium-breakout-life"]

all_cases = pytest.mark.parametrize("name", CASES)


jitted_play = functools.partial(jax.jit, static_argnums=0)(play)
"""Pools are data, not part of the program: one compiled program serves every call."""


def actions_of(name: str) -> np.ndarray:
    return random_actions(CASES[name].make(), 1, CASES[name].num_steps)


@functools.cache
def trajectory_of(name: str) -> jaxrl.TimeStep:
    steps = jitted_play(CASES[name].make(), jax.random.key(0), actions_of(name))
    return jax.tree.map(np.asarray, steps)


def assert_same(actual: Any, expected: Any, exact: bool = True) -> None:
    def compare(x, y):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-4)

    jax.tree.map(compare, actual, expected)


def differ(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return any(not np.array_equal(x, y) for x, y in pairs)


# --- time steps ----------------------------------------------------------------------------------


def assert_in_space(space: Any, obs: Any, lead: tuple[int, ...], slack: float = 0) -> None:
    if isinstance(space, jaxrl.Dict):
        assert set(obs) == {name for name, _ in space.parts}
        for name, part in space.parts:
            assert_in_space(part, obs[name], lead, slack)
        return
    assert obs.shape == (*lead, *space.shape)
    assert obs.dtype == space.dtype
    low, high = space.bounds()
    assert (obs >= low - slack).all()
    assert (obs <= high + slack).all()


@all_cases
def test_time_steps_match_the_spaces(name):
    case, env, steps = CASES[name], CASES[name].make(), trajectory_of(name)
    # LunarLander's velocities leave the bounds that it declares when it crashes.
    slack = 10 if name == "envpool-box2d" else 0
    assert_in_space(env.observation_space, steps.obs, (case.num_steps + 1, N), slack)
    rewards = [steps.reward] + ([] if steps.raw_reward is None else [steps.raw_reward])
    flags = [steps.terminated, steps.truncated, steps.first]
    flags += [] if steps.game_over is None else [steps.game_over]
    for leaf in rewards + flags:
        assert leaf.shape == (case.num_steps + 1, N)
    assert {leaf.dtype.name for leaf in rewards} == {"float32"}
    assert {leaf.dtype.name for leaf in flags} == {"bool"}


@all_cases
def test_the_step_after_an_end_and_no_other_is_first(name):
    steps = trajectory_of(name)
    ended = steps.terminated | steps.truncated
    assert steps.first[0].all()
    assert ended[:-1].any(), "no episode ended, so nothing was tested"
    np.testing.assert_array_equal(steps.first[1:], ended[:-1])
    assert not (steps.first & ended).any()


@all_cases
def test_a_first_step_pays_nothing(name):
    steps = trajectory_of(name)
    assert (steps.reward[steps.first] == 0).all()
    if steps.raw_reward is not None:
        assert (steps.raw_reward[steps.first] == 0).all()


@all_cases
def test_episodes_end_as_they_should(name):
    case, steps = CASES[name], trajectory_of(name)
    assert not (steps.terminated & steps.truncated).any()
    assert steps.terminated.any() == (case.ends in ("terminated", "both"))
    assert steps.truncated.any() == (case.ends in ("truncated", "both"))


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].length])
def test_episodes_of_fixed_length_have_that_length(name):
    length, steps = CASES[name].length, trajectory_of(name)
    ended = (steps.terminated | steps.truncated)[:, 0]
    expected = np.arange(len(ended)) % (length + 1) == length  # one step more for each reset
    np.testing.assert_array_equal(ended, expected)


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
    assert_same(jitted_play(env, jax.random.key(0), changed), steps)


@pytest.mark.parametrize("name", [name for name in LIMITED if "pong" not in name])
def test_every_episode_starts_anew(name):
    steps = trajectory_of(name)
    starts = steps.obs[steps.first]
    assert len(starts) > 2 * N
    assert len(np.unique(starts, axis=0)) == len(starts)


@pytest.mark.parametrize("name", LIMITED)
def test_the_observation_after_a_truncation_is_the_true_last_one(name):
    case, steps, actions = CASES[name], trajectory_of(name), actions_of(name)
    unlimited = {k: v for k, v in case.options.items() if not k.startswith("max_")}
    expected = jitted_play(
        jaxrl.make(case.id, N, **unlimited), jax.random.key(0), actions[: case.length]
    )
    assert steps.truncated[case.length].all()
    assert not expected.truncated.any()
    assert_same(steps.obs[: case.length + 1], expected.obs, exact=False)
    assert differ(steps.obs[case.length + 1], steps.obs[case.length])


def test_gymnax_steps_are_those_of_step_env():
    name = "gymnax-cartpole-limit"
    case, env, actions = CASES[name], CASES[name].make(), actions_of(name)
    inner_env, params = gymnax.make(env.name)
    state, timestep = env.init(jax.random.key(0))
    inner = jax.tree.map(lambda x: x[0], state.inner)
    step, step_env = jax.jit(env.step), jax.jit(inner_env.step_env)
    for t in range(case.length):
        state, timestep = step(jax.random.key(t), state, actions[t])
        obs, inner, reward, *_ = step_env(jax.random.key(t), inner, actions[t, 0], params)
        np.testing.assert_allclose(timestep.obs[0], obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(timestep.reward[0], np.squeeze(reward), rtol=1e-5)
    assert timestep.truncated.all()


@pytest.mark.parametrize(
    "name", ["envpool-cartpole", "envpool-pendulum-limit", "envpool-pong-limit"]
)
def test_envpool_steps_are_those_of_envpool(name):
    case, env, actions = CASES[name], CASES[name].make(), np.asarray(actions_of(name))
    state, timestep = env.init(jax.random.key(0))
    seeds = callback._groups[int(state.pool[0])].seeds
    pool = envpool.make(
        env.name, env_type="gymnasium", num_envs=N, seed=seeds.tolist(), **case.options
    )
    step, (obs, _) = jax.jit(env.step), pool.reset()

    def arrange(obs):
        return np.moveaxis(obs, 1, -1) if obs.ndim == 4 else obs

    np.testing.assert_array_equal(timestep.obs, arrange(obs))
    for action in actions[:10]:
        state, timestep = step(jax.random.key(0), state, action)
        obs, reward, terminated, truncated, _ = pool.step(action)
        np.testing.assert_array_equal(timestep.obs, arrange(obs))
        np.testing.assert_allclose(timestep.reward, reward, rtol=1e-6)
        np.testing.assert_array_equal(timestep.truncated, truncated)
        np.testing.assert_array_equal(timestep.terminated, terminated & ~truncated)


@pytest.mark.parametrize("backend", ["gymnax", "envpool"])
def test_a_falling_pole_terminates(backend):
    push_right = np.ones((15, 1), np.int32)
    steps = jitted_play(jaxrl.make(f"{backend}/CartPole-v1", 1), jax.random.key(0), push_right)
    length = int(np.argmax(steps.terminated[:, 0]))
    assert 5 < length < 15
    assert abs(steps.obs[length, 0, 2]) > 0.2095 > abs(steps.obs[length - 1, 0, 2])
    assert (steps.reward[1 : length + 1] == 1).all()


def test_a_pole_that_falls_at_the_time_limit_is_terminated():
    push_right = np.ones((15, 1), np.int32)
    free = jitted_play(jaxrl.make("gymnax/CartPole-v1", 1), jax.random.key(0), push_right)
    length = int(np.argmax(free.terminated[:, 0]))
    env = jaxrl.make("gymnax/CartPole-v1", 1, max_steps_in_episode=length)
    limited = jitted_play(env, jax.random.key(0), push_right)
    assert limited.terminated[length, 0]
    assert not limited.truncated[length, 0]


@pytest.mark.parametrize(
    "id", ["gymnax/Reacher-misc", "envpool/MountainCarContinuous-v0", "probe/Target-v0"]
)
def test_box_actions_are_clipped(id):
    env: Any = jaxrl.make(id, N)
    low, high = env.action_space.bounds()
    limits = np.stack([np.broadcast_to(x, (N, *low.shape)) for x in (low, high)])
    beyond = jitted_play(env, jax.random.key(0), 50 * limits)
    assert_same(beyond, jitted_play(env, jax.random.key(0), limits))
    assert differ(beyond, jitted_play(env, jax.random.key(0), 0.5 * limits))


# --- keys and transformations --------------------------------------------------------------------


@pytest.mark.parametrize("name", RANDOM)
def test_the_key_alone_decides(name):
    env, actions, steps = CASES[name].make(), actions_of(name), trajectory_of(name)
    assert_same(jitted_play(env, jax.random.key(0), actions), steps)
    other = jitted_play(env, jax.random.key(7), actions)
    assert differ(other.obs, steps.obs)
    first, second = (jax.tree.map(lambda x, i=i: x[:, i], other.obs) for i in (0, 1))
    assert differ(first, second), "environments of a batch are alike"


@pytest.mark.parametrize("name", VARIED)
def test_eager_jitted_and_scanned_steps_agree(name):
    env, actions, scanned = CASES[name].make(), actions_of(name), trajectory_of(name)
    init_key, step_key = jax.random.split(jax.random.key(0))
    keys = jax.random.split(step_key, len(actions))
    for transform, num_steps in ((lambda f: f, 3), (jax.jit, 9)):
        state, timestep = transform(env.init)(init_key)
        step = transform(env.step)
        assert_same(timestep, jax.tree.map(lambda x: x[0], scanned), exact=False)
        for t in range(min(num_steps, len(actions))):
            state, timestep = step(keys[t], state, actions[t])
            expected = jax.tree.map(lambda x, t=t: x[t + 1], scanned)
            assert_same(timestep, expected, exact=False)


@pytest.mark.parametrize("name", ["gymnax-pendulum-limit", "envpool-cartpole", "probe-target"])
def test_a_jitted_step_is_traced_once(name):
    env, actions, traces = CASES[name].make(), actions_of(name), []

    @jax.jit
    def step(key, state, action):
        traces.append(1)
        return env.step(key, state, action)

    state, _ = env.init(jax.random.key(0))
    for action in actions[:3]:
        state, _ = step(jax.random.key(0), state, action)
    assert len(traces) == 1


@pytest.mark.parametrize("name", [*VARIED, "gymnax-breakout"])
def test_a_vmapped_member_sees_what_it_would_see_alone(name):
    env = CASES[name].make()
    keys = jax.random.split(jax.random.key(3), P)
    actions = np.stack([actions_of(name), actions_of(name)[::-1]])
    population = jax.jit(jax.vmap(functools.partial(play, env)))(keys, actions)
    for member in range(P):
        alone = jitted_play(env, keys[member], actions[member])
        assert_same(jax.tree.map(lambda x, m=member: x[m], population), alone, exact=False)


@pytest.mark.parametrize("transform", ["pmap", "shard_map"])
@pytest.mark.parametrize("name", ["envpool-cartpole", "gymnasium-cartpole", "probe-contextual"])
def test_every_device_runs_as_if_alone(name, transform):
    if jax.device_count() < P:
        pytest.skip("needs two devices")
    env, actions = CASES[name].make(), actions_of(name)
    keys = jax.random.split(jax.random.key(3), P)
    before = set(callback._groups)

    def run(key):
        return play(env, key, actions)

    if transform == "pmap":
        sharded = jax.pmap(run)
    else:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:P]), ("device",))
        spec = jax.sharding.PartitionSpec("device")

        def run_shard(keys):
            return jax.tree.map(lambda x: x[None], run(keys[0]))

        sharded = jax.jit(
            jax.shard_map(run_shard, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        )
    steps = jax.block_until_ready(sharded(keys))
    new = [callback._groups[n] for n in set(callback._groups) - before]
    assert [len(pool.seeds) for pool in new] == ([N] * P if name in HOST else [])
    for device in range(P):
        alone = jitted_play(env, keys[device], actions)
        assert_same(jax.tree.map(lambda x, d=device: x[d], steps), alone, exact=False)


# --- environments are values ---------------------------------------------------------------------


@all_cases
def test_environments_made_alike_are_equal_and_hashable(name):
    env, again = CASES[name].make(), CASES[name].make()
    assert env == again
    assert hash(env) == hash(again)
    assert env != CASES[name].make(N + 1)
    assert env == jaxrl.make(env.id, env.num_envs, **env.options)
    assert isinstance(env, jaxrl.Env)
    assert env.checkpointable == (name not in HOST)


@all_cases
def test_an_evaluation_environment_is_the_same_task(name):
    env = CASES[name].make()
    evaluation = env.for_evaluation(5)
    assert (evaluation.id, evaluation.num_envs) == (env.id, 5)
    assert evaluation.observation_space == env.observation_space
    atari = {"episodic_life": False, "reward_clip": False} if name in ATARI else {}
    assert evaluation.options == env.options | atari


def test_environments_with_other_options_differ():
    short = jaxrl.make("gymnax/CartPole-v1", 2, max_steps_in_episode=5)
    assert short != jaxrl.make("gymnax/CartPole-v1", 2)
    assert jaxrl.make("probe/Episode-v0", 2, limit=3) != jaxrl.make("probe/Episode-v0", 2, limit=4)


# --- host environments: one state, one pool, one line of time -------------------------------------


@pytest.fixture
def cartpole() -> jaxrl.Env:
    return jaxrl.make("envpool/CartPole-v1", N)


def push(env: jaxrl.Env, state: HostState) -> tuple[HostState, jaxrl.TimeStep]:
    return env.step(jax.random.key(0), state, jnp.ones(N, jnp.int32))


def refused(message: str) -> Any:
    """The host's error reaches the caller in JAX's runtime error, message and all."""
    return pytest.raises(jax.errors.JaxRuntimeError, match=message)


@pytest.mark.parametrize(
    "name", ["envpool-cartpole", "envpool-breakout-life", "gymnasium-cartpole"]
)
def test_a_population_shares_one_pool(name):
    env, before = CASES[name].make(), set(callback._groups)
    state, _ = jax.vmap(env.init)(jax.random.split(jax.random.key(0), P))
    assert state.pool.tolist() == [state.pool[0].tolist()] * P
    (number,) = set(callback._groups) - before
    assert number == state.pool[0, 0]
    assert len(callback._groups[number].seeds) == P * N


def test_a_population_may_share_its_key(cartpole):
    actions = random_actions(cartpole, 1, P, 10)
    key = jax.random.key(0)
    population = jax.vmap(lambda actions: play(cartpole, key, actions))(jnp.asarray(actions))
    assert differ(population.obs[0], population.obs[1])
    for member in range(P):
        alone = jitted_play(cartpole, key, jnp.asarray(actions[member]))
        assert_same(jax.tree.map(lambda x, m=member: x[m], population), alone)


def test_a_running_environment_cannot_become_a_population(cartpole):
    state, _ = push(cartpole, cartpole.init(jax.random.key(0))[0])
    with refused("cannot be copied or split"):
        jax.vmap(lambda a: cartpole.step(jax.random.key(0), state, a))(jnp.ones((P, N), jnp.int32))
    push(cartpole, state)  # the refusal did not touch the pool


def test_a_population_cannot_be_split(cartpole):
    state, _ = jax.vmap(cartpole.init)(jax.random.split(jax.random.key(0), P))
    with refused("cannot be copied or split"):
        push(cartpole, jax.tree.map(lambda x: x[0], state))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_state_used_twice_is_refused(cartpole, transform):
    step = transform(functools.partial(push, cartpole))
    old, _ = cartpole.init(jax.random.key(0))
    state, _ = step(old)
    with refused("used twice"):
        jax.block_until_ready(step(old))
    step(state)  # the refusal did not touch the pool


def test_a_copied_state_is_refused(cartpole):
    state, _ = push(cartpole, cartpole.init(jax.random.key(0))[0])
    copy = jax.tree.map(jnp.copy, state)
    push(cartpole, state)
    with refused("or copied"):
        push(cartpole, copy)


def test_a_state_of_another_process_is_refused(cartpole):
    with refused("no longer exists"):
        push(cartpole, HostState(jnp.full(1, 2**30, jnp.int32), jnp.zeros(1, jnp.int32)))


def test_states_of_different_pools_cannot_be_stacked(cartpole):
    states = [cartpole.init(jax.random.key(seed))[0] for seed in range(P)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
    with refused("different pools were stacked"):
        jax.vmap(functools.partial(push, cartpole))(stacked)


def test_the_wrong_number_of_actions_is_refused(cartpole):
    state, _ = cartpole.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"takes actions of shape \(3,\), got \(4,\)"):
        cartpole.step(jax.random.key(0), state, jnp.ones(N + 1, jnp.int32))


def test_the_pool_longest_unused_is_closed_and_its_state_refused(cartpole):
    used, _ = cartpole.init(jax.random.key(0))
    unused, _ = cartpole.init(jax.random.key(0))
    for seed in range(callback.max_groups() - 1):
        used, _ = push(cartpole, used)
        cartpole.init(jax.random.key(seed))
    assert len(callback._groups) == callback.max_groups()
    push(cartpole, used)
    with refused("no longer exists"):
        push(cartpole, unused)


def test_two_states_of_one_environment_can_be_interleaved(cartpole):
    actions = random_actions(cartpole, 1, 10)
    key = jax.random.key(0)

    @jax.jit  # of which XLA must not merge the two equal calls
    def interleave(key):
        (one, start), (two, _) = cartpole.init(key), cartpole.init(key)

        def step(states, action):
            one, first = cartpole.step(key, states[0], action)
            two, second = cartpole.step(key, states[1], action)
            return (one, two), (first, second)

        return (one, two), start, jax.lax.scan(step, (one, two), actions)[1]

    (one, two), start, (first, second) = interleave(key)
    assert one.pool != two.pool
    assert_same(first, second)
    assert differ(first.obs[0], start.obs)


# --- Atari ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("id", "num_steps"), [("Breakout-v5", 400), ("SpaceInvaders-v5", 600)])
def test_atari_scores_are_raw_and_of_whole_games(id, num_steps):
    env = jaxrl.make(f"envpool/{id}", N, **LIFE)
    actions = random_actions(env, 1, num_steps)
    state, timestep = env.init(jax.random.key(0))
    seeds = callback._groups[int(state.pool[0])].seeds

    @jax.jit
    def run(state, timestep):
        def step(carry, action):
            state, statistics = carry
            state, timestep = env.step(jax.random.key(0), state, action)
            ended = timestep.terminated | timestep.truncated
            return (state, episodes.update(statistics, timestep)), (timestep.reward, ended)

        (_, statistics), rows = jax.lax.scan(step, (state, episodes.start(timestep)), actions)
        return statistics, rows

    statistics, (learner_reward, learner_ended) = run(state, timestep)

    pool = envpool.make(id, env_type="gymnasium", num_envs=N, seed=seeds.tolist(), **LIFE)
    pool.reset()
    scores, lengths = [[] for _ in range(N)], [[] for _ in range(N)]
    score, length, resets = np.zeros(N), np.zeros(N, int), np.zeros(N, bool)
    for action in np.asarray(actions):
        _, _, terminated, truncated, info = pool.step(action)
        score, length, resets = score + info["reward"], length + ~resets, terminated | truncated
        for n in np.flatnonzero(info["lives"] == 0):  # the game is over, not only a life
            scores[n].append(score[n])
            lengths[n].append(length[n])
            score[n] = length[n] = 0

    games = [len(s) for s in scores]
    assert sum(games) > 0
    assert learner_ended.sum() > sum(games)
    np.testing.assert_array_equal(statistics.count, games)
    np.testing.assert_array_equal(statistics.return_sum, [sum(s) for s in scores])
    np.testing.assert_array_equal(statistics.length_sum, [sum(n) for n in lengths])
    np.testing.assert_array_equal(statistics.running_return, score)
    np.testing.assert_array_equal(statistics.running_length, length)
    assert set(np.unique(learner_reward)) == {0, 1}
    if id == "SpaceInvaders-v5":
        assert statistics.return_sum.sum() > 2 * learner_reward.sum()


# --- pictures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "id",
    [
        pytest.param("envpool/HalfCheetah-v4", marks=NEW_ENVPOOL),
        pytest.param("envpool/D1Basic-v1", marks=NEW_ENVPOOL),
        "envpool/gfootball/academy_empty_goal_close-v1",
        "envpool/Jumanji/Tetris-v0",
        "envpool/Pong-v5",
        "gymnasium/CartPole-v1",
        "gymnasium/ALE/Pong-v5",
    ],
)
def test_pictures_of_every_family(id):
    env = jaxrl.make(id, N).for_rendering()
    state, _ = env.init(jax.random.key(0))
    first = env.render(state)
    assert (first.dtype, first.shape[2]) == (np.uint8, 3)
    assert min(first.shape[:2]) > 100
    step = jax.jit(env.step)
    for action in random_actions(env, 0, 30):
        state, _ = step(jax.random.key(0), state, action)
    assert (env.render(state) != first).any()


# --- ids and options -----------------------------------------------------------------------------


@pytest.fixture
def fake_mnist(monkeypatch):
    """MNISTBandit downloads its images; these are as good."""
    images = np.zeros((4, 28, 28), np.float32), np.arange(4)
    monkeypatch.setattr(load_mnist, "load_mnist", lambda: (images, images))
    yield
    gymnax_adapter._inner.cache_clear()
    gymnax_adapter._spaces.cache_clear()


@pytest.mark.parametrize("name", gymnax.registered_envs)
def test_every_gymnax_id_has_consistent_shapes(name, fake_mnist):
    env = jaxrl.make(f"gymnax/{name}", N)
    actions = jnp.zeros((3, N, *env.action_space.shape), env.action_space.dtype)
    steps = jax.eval_shape(functools.partial(play, env), jax.random.key(0), actions)
    assert isinstance(env.observation_space, jaxrl.Box)
    assert steps.obs.shape == (4, N, *env.observation_space.shape)
    assert steps.obs.dtype == env.observation_space.dtype
    assert steps.reward.dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize("name", gymnax.registered_envs)
def test_every_gymnax_id_runs(name, fake_mnist):
    env = jaxrl.make(f"gymnax/{name}", N)
    actions = random_actions(env, 1, 100)
    steps = jitted_play(env, jax.random.key(0), actions)
    ended = steps.terminated | steps.truncated
    assert np.isfinite(steps.obs).all()
    assert np.isfinite(steps.reward).all()
    assert not (steps.terminated & steps.truncated).any()
    np.testing.assert_array_equal(steps.first[1:], ended[:-1])
    assert (steps.reward[steps.first] == 0).all()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"num_threads": -1}, "num_threads of envpool/Pong-v5 must be an integer >= 0, got -1"),
        ({"frame_skip": 0}, "frame_skip of envpool/Pong-v5 must be an integer >= 1, got 0"),
        ({"repeat_action_probability": 2}, r"must be within \[0, 1\], got 2"),
        ({"episodic_life": 3}, "episodic_life must be True or False, got 3"),
    ],
)
def test_values_that_envpool_would_take_and_crash_are_refused(option, message):
    with pytest.raises(ValueError, match=message):
        jaxrl.make("Pong-v5", 2, **option)


def test_an_environment_of_gymnaxs_kind_is_registered():
    gymnax.register("Own-v0", gymnax.environments.CartPole)
    try:
        own, known = (jaxrl.make(id, N) for id in ("Own-v0", "CartPole-v1"))
        steps = [play(env, jax.random.key(0), jnp.zeros((12, N), int)) for env in (own, known)]
    finally:
        del gymnax.registration._registry["Own-v0"]
        gymnax.registered_envs.remove("Own-v0")
    assert own.id == "gymnax/Own-v0"
    np.testing.assert_array_equal(steps[0].obs, steps[1].obs)


def test_a_bare_id_means_gymnax_then_envpool():
    assert jaxrl.make("CartPole-v1", N).id == "gymnax/CartPole-v1"
    assert jaxrl.make("FrozenLake-v1", N).id == "envpool/FrozenLake-v1"
    assert jaxrl.make("envpool/CartPole-v1", N).id == "envpool/CartPole-v1"
    with pytest.raises(ValueError, match="among gymnax;"):
        jaxrl.make("gymnax/FrozenLake-v1", N)


def test_integer_observations_are_one_hot():
    env = jaxrl.make("envpool/FrozenLake-v1", N)
    assert env.observation_space == Box((16,), np.dtype(np.float32), 0.0, 1.0)
    _, timestep = env.init(jax.random.key(0))
    np.testing.assert_array_equal(timestep.obs, np.eye(16, dtype=np.float32)[[0] * N])


@pytest.mark.parametrize("game", ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"])
def test_minatar_shows_the_same_zeros_and_ones_in_bytes(game):
    env: Any = jaxrl.make(f"{game}-MinAtar", N)
    assert env.observation_space.dtype == np.bool_

    def step(state, key):
        raw = jax.vmap(backend.get_obs)(state.inner)
        state, timestep = env.step(key, state, jax.random.randint(key, (N,), 0, env.action_space.n))
        return state, (raw, timestep.obs)

    backend, _ = gymnax.make(f"{game}-MinAtar")
    state, _ = env.init(jax.random.key(0))
    _, (raw, obs) = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 300))
    assert set(np.unique(raw)) == {0.0, 1.0}
    np.testing.assert_array_equal(raw[1:], obs[:-1])


@pytest.mark.parametrize(
    ("id", "near"),
    [
        ("CartPol-v1", "gymnax/CartPole-v1"),
        ("envpool/Pnog-v5", "envpool/Pong-v5"),
        ("probe/Constant", "probe/Constant-v0"),
    ],
)
def test_an_unknown_id_is_refused_with_near_matches(id, near):
    with pytest.raises(ValueError, match=f"unknown environment id '{id}'.*{near}"):
        jaxrl.make(id, N)


def test_an_id_far_from_all_others_is_refused():
    with pytest.raises(ValueError, match="no id comes near it"):
        jaxrl.make("#####", N)


@pytest.mark.parametrize("num_envs", [0, -1, 2.0, True, "2", None])
def test_a_bad_number_of_environments_is_refused(num_envs):
    with pytest.raises(ValueError, match="num_envs must be an integer >= 1"):
        jaxrl.make("CartPole-v1", num_envs)


@pytest.mark.parametrize(
    "id",
    ["gymnax/CartPole-v1", "envpool/CartPole-v1", "maze/FindAndReturn-v0", "probe/Constant-v0"],
)
def test_an_unknown_option_is_refused_by_name(id):
    with pytest.raises(ValueError, match=f"{id}.*colour"):
        jaxrl.make(id, N, colour="red")


def test_the_buttons_of_doom_are_one_choice():
    assert jaxrl.make("envpool/D1Basic-v1", N).action_space == Discrete(6)
    apart = jaxrl.make("envpool/D1Basic-v1", N, use_combined_action=False)
    assert apart.action_space == Box.of((3,), np.float32)


def test_a_multi_player_environment_is_refused():
    with pytest.raises(ValueError, match=r"envpool/TicTacToe-v1.*multi-player"):
        jaxrl.make("envpool/TicTacToe-v1", N)


@pytest.mark.parametrize(
    ("env_id", "shape"), [("Pong-v5", (84, 84, 4)), ("envpool/CarRacing-v3", (96, 96, 3))]
)
def test_images_are_channels_last_whatever_the_family_has(env_id, shape):
    space = jaxrl.make(env_id).observation_space
    assert isinstance(space, jaxrl.Box)
    assert space.shape == shape


def test_a_count_that_gymnax_keeps_as_a_float_may_be_given_as_an_integer():
    env = jaxrl.make("BernoulliBandit-misc", 2, max_steps_in_episode=3)
    state, _ = env.init(jax.random.key(0))
    ends = []
    for number in range(8):
        state, timestep = env.step(jax.random.key(number), state, jnp.zeros(2, jnp.int32))
        ends.append(bool((timestep.terminated | timestep.truncated).all()))
    assert any(ends)


def test_switches_of_gymnax_are_switches():
    env = jaxrl.make("Asterix-MinAtar", 2, ramping=False)
    assert env.options == {"ramping": False}
    with pytest.raises(ValueError, match=r"option ramping .* must be True or False, got 2"):
        jaxrl.make("Asterix-MinAtar", 2, ramping=2)
    with pytest.raises(ValueError, match=r"option shot_cool_down .* must be a number, got True"):
        jaxrl.make("Asterix-MinAtar", 2, shot_cool_down=True)


def test_what_cannot_be_downloaded_is_told(monkeypatch):
    def offline(name):
        raise OSError("no route to host")

    monkeypatch.setattr(gymnax_adapter.gymnax, "make", offline)
    gymnax_adapter._inner.cache_clear()
    with pytest.raises(ImportError, match="MNIST-bsuite cannot run on this machine: no route"):
        gymnax_adapter._inner("MNIST-bsuite", ())
