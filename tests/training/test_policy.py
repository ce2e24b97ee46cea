"""Policies: the agent of a run's newest checkpoint, as a function of observations."""

import functools
from types import SimpleNamespace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from written_runs import write_run

import jaxrl
from jaxrl.envs.host import callback
from jaxrl.training.policy import as_batch
from jaxrl.training.run_dir import manifest as manifests

CONFIG = jaxrl.PPOConfig(num_steps=4, num_minibatches=1, num_epochs=1, hidden_sizes=(8,))


@pytest.mark.slow
def test_a_loaded_policy_acts_on_one_or_many_observations(tmp_path):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
    result = jaxrl.run(
        algo, CONFIG, total_steps=32, run_dir=tmp_path, num_evaluations=0, progress_bar=False
    )
    policy = jaxrl.load_policy(tmp_path)
    obs = np.random.default_rng(0).normal(size=(50, 4))
    batch = policy(obs)
    assert batch.shape == (50,)
    assert [int(policy(one)) for one in obs[:5]] == batch[:5].tolist()
    _, expected = algo.act(
        CONFIG, result.state, (), jnp.asarray(obs, jnp.float32), jax.random.key(0), True
    )
    assert (batch == expected).all()
    assert set(policy(obs, jax.random.key(1)).tolist()) == {0, 1}
    same = jaxrl.load_policy(tmp_path, env=jaxrl.make("CartPole-v1", 1))
    assert same(obs).tolist() == batch.tolist()
    four = jaxrl.make("CartPole-v1", 4)
    members = ("observation_space", "action_space", "init", "step")
    one = SimpleNamespace(num_envs=1, **{name: getattr(four, name) for name in members})
    with pytest.raises(ValueError, match="env must be 4 environments, as the run had"):
        jaxrl.load_policy(tmp_path, env=one)
    with pytest.raises(ValueError, match=r"env must be environments, such as jaxrl\.make"):
        jaxrl.load_policy(tmp_path, env=SimpleNamespace(num_envs=4))
    with pytest.raises(ValueError, match=r"network or environment: params.*there and .* here"):
        jaxrl.load_policy(tmp_path, env=jaxrl.make("Acrobot-v1", 4))
    with pytest.raises(ValueError, match="trained by 'ppo', but make_algorithm makes 'dqn'"):
        jaxrl.load_policy(tmp_path, make_algorithm=jaxrl.dqn)
    for shape in (5, (0, 4)):
        with pytest.raises(ValueError, match=r"observations of shape \(4,\)"):
            policy(np.zeros(shape))


def test_numbers_that_integers_cannot_hold_are_no_observations():
    space = jaxrl.Box((2,), np.dtype(np.uint8), 0, 255)
    for obs in ([0, 255], np.array([[3.0, 4.0]]), np.zeros(2, bool)):
        batch, _ = as_batch(space, obs)
        np.testing.assert_array_equal(batch, np.reshape(obs, (1, 2)))
    for obs in (np.array([0.5, 1.0]), [-1, 255], np.array([0, 256]), [np.nan, 0]):
        with pytest.raises(ValueError, match="obs must be an array of uint8"):
            as_batch(space, obs)


def test_gymnasium_takes_actions_as_they_are():
    for name in ("CartPole-v1", "Pendulum-v1"):
        algo = jaxrl.ppo(jaxrl.make(name, 2))
        policy = jaxrl.LoadedPolicy(algo, CONFIG, jax.jit(algo.init)(CONFIG, jax.random.key(0)))
        env = gymnasium.make(name)
        obs, _ = env.reset(seed=0)
        action = policy(obs)
        assert env.action_space.contains(action)
        env.step(action)
        env.close()


class Parts(gymnasium.Env):
    """Observations and actions that jaxrl converts."""

    def __init__(self, action_space: gymnasium.Space):
        self.observation_space = gymnasium.spaces.Dict({
            "mode": gymnasium.spaces.Discrete(3, start=5),
            "image": gymnasium.spaces.Box(0, 255, (3, 12, 10), np.uint8),
            "pair": gymnasium.spaces.Tuple([gymnasium.spaces.Box(-1, 1, (2,), np.float64)] * 2),
        })  # fmt: skip
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


@pytest.mark.parametrize(
    "action_space",
    [
        gymnasium.spaces.Discrete(4, start=-1),
        gymnasium.spaces.Box(-2, 2, (2,), np.int64),
        gymnasium.spaces.Box(-1, 1, (2, 2), np.float32),
        gymnasium.spaces.MultiBinary(3),
    ],
)
def test_a_policy_acts_in_a_loop_of_gymnasium(action_space):
    env = jaxrl.make(functools.partial(Parts, action_space), 1, vectorization_mode="sync")
    algo, simulator = jaxrl.ppo(env), Parts(action_space)
    state = jax.jit(algo.init)(CONFIG, jax.random.key(0))
    with callback.closing(state):
        policy = jaxrl.LoadedPolicy(algo, CONFIG, state)
        for number in range(5):
            obs, _ = simulator.reset()
            action = policy.act_in(simulator, obs, jax.random.key(number))
            assert action_space.contains(action)
            converted = {
                "mode": np.eye(3)[obs["mode"] - 5], "image": np.moveaxis(obs["image"], 0, -1),
                "pair": {str(place): part for place, part in enumerate(obs["pair"])},
            }  # fmt: skip
            expected = policy(converted, jax.random.key(number)).reshape(action_space.shape)
            low = {"Discrete": -1, "Box": -2}.get(type(action_space).__name__, 0)
            is_integer = np.issubdtype(action_space.dtype, np.integer)
            np.testing.assert_array_equal(action, expected + (low if is_integer else 0))
        with pytest.raises(ValueError, match="the policy takes observations of shape"):
            policy.act_in(gymnasium.make("CartPole-v1"), np.zeros(4, np.float32))


def test_actions_of_a_box_stay_within_its_bounds():
    algo = jaxrl.ppo(jaxrl.make("Pendulum-v1", 2))
    policy = jaxrl.LoadedPolicy(algo, CONFIG, jax.jit(algo.init)(CONFIG, jax.random.key(0)))
    actions = policy(jnp.zeros((500, 3)), jax.random.key(0))
    assert (jnp.abs(actions) <= 2).all()
    assert (jnp.abs(actions) == 2).any()


def test_a_config_that_is_damaged_names_its_directory(tmp_path):
    write_run(tmp_path / "run")
    changed = {"config": {"clip_valUe": True}, "log_every": 1}
    changed |= {"num_evaluations": 0, "eval_episodes": 1}
    manifests.write(tmp_path / "run", manifests.read(tmp_path / "run") | changed)
    for load in (jaxrl.load_policy, lambda path: jaxrl.rerun(path, tmp_path / "again")):
        with pytest.raises(ValueError, match=rf"{tmp_path / 'run'}.*no fields \['clip_valUe'\]"):
            load(tmp_path / "run")


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
def test_a_policy_that_jax_traces_says_what_acts_instead(transform):
    algo, config = jaxrl.ppo(jaxrl.make("CartPole-v1", 2)), CONFIG.replace(core="gru")
    state = jax.jit(algo.init)(config, jax.random.key(0))
    policy = jaxrl.LoadedPolicy(algo, config, state)
    with pytest.raises(ValueError, match=r"call policy\.algo\.act\(policy\.config"):
        transform(policy)(jnp.zeros((3, 4)))
    assert policy.memory == ()
    _, action = transform(lambda obs: algo.act(config, state, (), obs, None, True))(
        jnp.zeros((1, 3, 4)) if transform is jax.vmap else jnp.zeros((3, 4))
    )
    np.testing.assert_array_equal(action.reshape(3), policy(np.zeros((3, 4))))
