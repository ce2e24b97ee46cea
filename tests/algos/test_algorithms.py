"""What every algorithm keeps to, whatever it learns by: one suite for all of them."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.config import is_static
from jaxrl.networks import build, recurrent
from jaxrl.training.loop import train_chunk

# A large epsilon: Adam and RMSProp divide by gradients that are rounding noise otherwise.
SMALL: dict[str, Any] = {
    "num_steps": 4, "hidden_sizes": (8,), "learning_rate": 0.05, "anneal_updates": 100
}  # fmt: skip
ADAM: dict[str, Any] = SMALL | {"adam_eps": 0.1}
RMSPROP: dict[str, Any] = SMALL | {"rmsprop_eps": 0.1}
LSTM: dict[str, Any] = {"core": "lstm", "core_size": 8, "use_last_action_reward": True}
# The replay is full after 4 updates, the target network moves after 2.
REPLAY: dict[str, Any] = ADAM | {
    "replay_size": 32, "batch_size": 4, "learning_starts": 8, "target_period": 2
}  # fmt: skip
ON_POLICY_PPO: dict[str, Any] = ADAM | {"num_minibatches": 2, "num_epochs": 2}
EXPLORING: dict[str, Any] = {"final_epsilon": 0.1, "exploration_steps": 40.0}

CONFIGS: dict[str, Any] = {
    "ppo": jaxrl.PPOConfig(**ON_POLICY_PPO),
    "ppo-gru": jaxrl.PPOConfig(**ON_POLICY_PPO | LSTM | {"core": "gru", "target_kl": 10.0}),
    "a2c": jaxrl.A2CConfig(**RMSPROP),
    "a2c-lstm": jaxrl.A2CConfig(**RMSPROP | LSTM | {"final_entropy_coef": 0.0, "log_eps": 1e-6}),
    "impala": jaxrl.ImpalaConfig(**RMSPROP, lag=0),
    "impala-lstm": jaxrl.ImpalaConfig(**RMSPROP | LSTM),
    "dqn": jaxrl.DQNConfig(**REPLAY | EXPLORING),
    "dqn-prioritized": jaxrl.DQNConfig(
        **REPLAY | EXPLORING, n_step=2, double=True, dueling=True, prioritized=True
    ),
    "r2d2": jaxrl.R2D2Config(**REPLAY, core_size=8, burn_in=2, unroll_length=2, n_step=2),
}
WITH_MEMORY = [name for name, config in CONFIGS.items() if config.core]

pytestmark = pytest.mark.usefixtures("quick_compilation")
everything = pytest.mark.parametrize("name", CONFIGS)


def quickly_for(*names):
    """These by default; the others, each of which compiles for seconds, with the slow tests."""
    slow = pytest.mark.slow
    names = [name if name in names else pytest.param(name, marks=slow) for name in CONFIGS]
    return pytest.mark.parametrize("name", names)


@dataclasses.dataclass(frozen=True)
class Frames:
    """Breakout-MinAtar at twice the size, as if its planes were a stack of frames, in bytes."""

    planes: Any

    def __getattr__(self, name):
        return getattr(self.planes, name)

    @property
    def observation_space(self):
        height, width, planes = self.planes.observation_space.shape
        return jaxrl.Box((2 * height, 2 * width, planes), np.dtype(np.uint8), 0, 255)

    def init(self, key):
        return self._as_frames(*self.planes.init(key))

    def step(self, key, state, action):
        return self._as_frames(*self.planes.step(key, state, action))

    def _as_frames(self, state, timestep):
        obs = (255 * timestep.obs).astype(jnp.uint8).repeat(2, 1).repeat(2, 2)
        return state, timestep._replace(obs=obs)


@functools.cache
def algorithm(name, env_id="CartPole-v1", num_envs=2):
    frames = env_id == "frames"
    env = jaxrl.make("Breakout-MinAtar" if frames else env_id, num_envs=num_envs)
    return getattr(jaxrl, name.partition("-")[0])(Frames(env) if frames else env)


@functools.cache
def initializer(algo):
    return jax.jit(algo.init)


def start(name, key=0, config=None):
    key = jax.random.key(key) if isinstance(key, int) else key
    return initializer(algorithm(name))(config or CONFIGS[name], key)


def learn(name, config, state, num_updates=10) -> tuple[Any, dict[str, np.ndarray]]:
    """By the program that runs use. It takes the state's memory, so it gets a copy."""
    copy = jax.tree.map(jnp.copy, state)
    state, metrics = train_chunk(algorithm(name), config, copy, jnp.int32(num_updates))
    return state, {key: np.asarray(x)[:num_updates] for key, x in metrics.items()}


def as_numpy(tree):
    def convert(x):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return [convert(x) for x in jax.tree.leaves(tree)]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(as_numpy(a), as_numpy(b), strict=True))


def assert_close(a, b, **tolerance):
    for x, y in zip(as_numpy(a), as_numpy(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


# --- the program ---------------------------------------------------------------------------------


@quickly_for("dqn-prioritized")
def test_an_update_under_jit_equals_an_eager_one(name):
    config = CONFIGS[name]
    state, _ = learn(name, config, start(name), 4)
    jitted, metrics = learn(name, config, state, 1)
    with jax.disable_jit():
        eager, eager_metrics = algorithm(name).update(config, state)
    assert metrics["loss"] != 0
    assert_close(jitted.params, eager.params, rtol=1e-4, atol=1e-5)
    assert set(metrics) == set(eager_metrics)
    for key in metrics:
        np.testing.assert_allclose(metrics[key][0], eager_metrics[key], rtol=1e-3, atol=1e-5)


def assert_members_learn_alone(population, metrics, singles):
    for i, (state, one) in enumerate(singles):
        member = jax.tree.map(lambda x, i=i: x[i], population.params)
        assert_close(member, state.params, rtol=1e-3, atol=1e-5)
        for key in ("valid_steps", "episode_count", "episode_return_sum"):
            assert (metrics[key][i] == one[key]).all()
        np.testing.assert_allclose(metrics["loss"][i], one["loss"], rtol=1e-2, atol=1e-4)


@quickly_for("ppo", "dqn-prioritized")
def test_a_population_over_seeds_and_configs_learns_what_its_members_learn(name):
    algo, config = algorithm(name), CONFIGS[name]
    keys = jax.random.split(jax.random.key(3), 4)
    rates, gammas = [0.01, 0.02, 0.05, 0.1], [0.9, 0.99, 0.5, 1.0]

    @jax.jit
    @jax.vmap
    def train(rate, gamma, key):
        return jaxrl.train(algo, config.replace(learning_rate=rate, gamma=gamma), key, 6)

    population, metrics = train(jnp.array(rates), jnp.array(gammas), keys)
    configs = [config.replace(learning_rate=r, gamma=g) for r, g in zip(rates, gammas, strict=True)]
    singles = [learn(name, configs[i], start(name, keys[i]), 6) for i in range(4)]
    assert_members_learn_alone(population, metrics, singles)


@quickly_for("dqn")
def test_a_population_on_the_host_shares_a_pool_and_learns_what_its_members_learn(name):
    algo, config = algorithm(name, "envpool/CartPole-v1"), CONFIGS[name]
    keys, rates = jax.random.split(jax.random.key(3), 2), jnp.array([0.01, 0.1])

    def train(rate, key):
        return jaxrl.train(algo, config.replace(learning_rate=rate), key, 6)

    population, metrics = jax.jit(jax.vmap(train))(rates, keys)
    assert len(np.unique(population.simulation.env_state.pool)) == 1
    single = jax.jit(train)
    singles = [single(rates[i], keys[i]) for i in range(2)]
    assert_members_learn_alone(population, metrics, singles)


@functools.cache
def shapes_of_update(name):
    return jax.eval_shape(algorithm(name).update, CONFIGS[name], start(name))


def described(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)


@everything
def test_the_state_holds_arrays_that_keep_their_shapes_and_dtypes(name):
    state = start(name)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(state))
    after, _ = shapes_of_update(name)
    assert described(after) == described(jax.eval_shape(lambda: state))


@everything
def test_metrics_are_the_same_scalars_in_each_update(name):
    _, shapes = shapes_of_update(name)
    assert {x.shape for x in shapes.values()} == {()}
    assert {
        "episode_return_sum", "episode_length_sum", "episode_count", "valid_steps", "loss"
    } <= set(shapes)  # fmt: skip
    _, metrics = learn(name, CONFIGS[name], start(name))
    assert set(metrics) == set(shapes)
    assert metrics["episode_count"].sum() > 0
    assert (metrics["valid_steps"] <= 8).all()
    assert all(np.isfinite(x).all() for x in metrics.values())
    # CartPole pays 1 a step.
    assert (metrics["episode_return_sum"] == metrics["episode_length_sum"]).all()


@pytest.fixture(scope="module")
def run_in_two_parts(tmp_path_factory):
    """Ten updates, saved and taken up again after the fourth."""

    @functools.cache
    def run(name):
        directory = tmp_path_factory.mktemp(name) / "run"
        for num_updates in (4, 10):
            result = jaxrl.run(
                algorithm(name),
                CONFIGS[name],
                total_steps=num_updates * 2 * 4,
                run_dir=directory,
                resume=True,
                **QUIET,
            )
        return result

    return run


QUIET: dict[str, Any] = {
    "seed": 3, "num_evaluations": 0, "chunk_updates": 2, "log_every": 1, "progress_bar": False
}  # fmt: skip


@everything
def test_ten_updates_equal_four_and_six_more_bit_for_bit(name, run_in_two_parts):
    parts = run_in_two_parts(name)
    whole = jaxrl.run(algorithm(name), CONFIGS[name], total_steps=10 * 2 * 4, **QUIET)
    assert int(whole.state.num_updates) == int(parts.state.num_updates) == 10
    assert not same(whole.state.params, start(name, 3).params)
    assert same(parts.state, whole.state)


@pytest.mark.parametrize(
    ("name", "env_id", "changes"),
    [
        pytest.param("dqn", "Breakout-MinAtar", {}, marks=pytest.mark.slow),
        ("dqn-prioritized", "frames", {"frame_stack": 4}),
        ("r2d2", "Breakout-MinAtar", {}),
    ],
    ids=["dqn", "dqn-of-frames", "r2d2"],
)
def test_the_replay_is_not_copied(name, env_id, changes):
    algo = algorithm(name, env_id, 32)
    config = CONFIGS[name].replace(**{"replay_size": 200_000, "torso": "mlp"} | changes)
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    replay_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.memory))
    assert replay_bytes > 60e6
    compiled = train_chunk.lower(algo, config, state, jnp.int32(1)).compile()
    memory: Any = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= replay_bytes
    assert memory.temp_size_in_bytes < replay_bytes / 10


# --- the config ----------------------------------------------------------------------------------

NETWORK = {
    "torso": "mlp",
    "hidden_sizes": (9,),
    "activation": "swish",
    "compute_dtype": "bfloat16",
}
MEMORY = {"core": None, "core_size": 9, "use_last_action_reward": False}
LEARNING = {
    "learning_rate": 0.02,
    "anneal_updates": 3,
    "gamma": 0.5,
    "max_grad_norm": 0.01,
    "num_steps": 8,
}
ACTOR_CRITIC = {"value_coef": 0.1, "entropy_coef": 0.5}
Q_LEARNING = {
    "adam_eps": 0.2,
    "learning_starts": 40,
    "target_period": 3,
    "priority_exponent": 0.2,
    "importance_exponent": 1.0,
    "num_gradient_steps": 2,
    "batch_size": 8,
    "replay_size": 64,
    "frame_stack": 4,
    "n_step": 1,
    "dueling": False,
}
CHANGES: dict[str, dict[str, Any]] = {
    "ppo-gru": NETWORK | MEMORY | LEARNING | ACTOR_CRITIC | {
        "gae_lambda": 0.5,
        "clip_epsilon": 1e-3,
        "adam_eps": 0.2,
        "target_kl": 1e-9,
        "num_epochs": 1,
        "num_minibatches": 1,
        "clip_value": True,
        "normalize_advantages": False,
        "normalize_observations": True,
        "normalize_rewards": True,
    },
    "a2c-lstm": NETWORK | MEMORY | LEARNING | ACTOR_CRITIC | {
        "gae_lambda": 0.5,
        "final_entropy_coef": 0.5,
        "rmsprop_decay": 0.5,
        "rmsprop_eps": 0.2,
        "rmsprop_initial": 1.0,
        "log_eps": 1e-2,
        "min_training_batch": 16,
        "eps_inside_root": False,
        "sum_losses": True,
        "normalize_observations": True,
    },
    "impala-lstm": NETWORK | MEMORY | LEARNING | ACTOR_CRITIC | {
        "trace_lambda": 0.5,
        "rho_bar": 0.5,
        "c_bar": 0.5,
        "policy_rho_bar": 0.5,
        "rmsprop_decay": 0.5,
        "rmsprop_eps": 0.2,
        "lag": 2,
        "off_policy_correction": False,
        "sum_losses": False,
        "normalize_observations": True,
    },
    "dqn-prioritized": NETWORK | LEARNING | Q_LEARNING | {
        "initial_epsilon": 0.5,
        "final_epsilon": 0.9,
        "exploration_steps": 10.0,
        "double": False,
        "prioritized": False,
    },
    "r2d2": NETWORK | MEMORY | LEARNING | Q_LEARNING | {
        "core": "gru",
        "epsilon_base": 0.9,
        "epsilon_exponent": 1.0,
        "priority_max_share": 0.1,
        "burn_in": 1,
        "unroll_length": 3,
        "rescale_values": False,
    },
}  # fmt: skip
FIELDS = [(name, field) for name in CHANGES for field in dataclasses.fields(CONFIGS[name])]
FOR_IMAGES = ("torso", "frame_stack")


def changed(name, *fields):
    changes = next(changes for base, changes in CHANGES.items() if base.startswith(name))
    return CONFIGS[name].replace(**{field: changes[field] for field in fields})


def of_fields(static):
    return pytest.mark.parametrize(
        ("name", "field"),
        [
            (name, field.name)
            for name, field in FIELDS
            if is_static(field) == static and field.name in CHANGES[name]
        ],
    )


def test_the_changes_cover_every_field_of_every_config():
    assert {type(CONFIGS[name]) for name in CHANGES} == {
        type(config) for config in CONFIGS.values()
    }
    for name, changes in CHANGES.items():
        known = {field.name for field in dataclasses.fields(CONFIGS[name])}
        # DQN refuses a memory, so its fields are without effect.
        assert known - set(changes) == (set(MEMORY) if name == "dqn-prioritized" else set())
        assert set(changes) <= known


@of_fields(static=False)
def test_every_traced_field_changes_what_is_learned(name, field):
    configs = CONFIGS[name], changed(name, field)
    before, after = (learn(name, config, start(name, 0, config))[0] for config in configs)
    assert not same(before.params, after.params)


@functools.cache
def shapes(name, env_id, *fields):
    algo, config = algorithm(name, env_id), changed(name, *fields)
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    return state, [x.shape for x in jax.tree.leaves(state.params)]


@functools.cache
def program(name, env_id, *fields):
    """The text of an update."""
    state, _ = shapes(name, env_id, *fields)
    return str(jax.make_jaxpr(algorithm(name, env_id).update)(changed(name, *fields), state))


def setting(name, field):
    """What shows a static field's effect and is traced fastest."""
    # Not IMPALA's: without a lag there is nothing to correct.
    without_memory = {"ppo-gru": "ppo", "a2c-lstm": "a2c"}
    name = name if field in MEMORY else without_memory.get(name, name)
    return name, "frames" if field in FOR_IMAGES else "CartPole-v1"


@of_fields(static=True)
def test_every_static_field_changes_the_program(name, field):
    where = setting(name, field)
    other_network = shapes(*where, field)[1] != shapes(*where)[1]
    assert other_network or program(*where, field) != program(*where)


def test_a_program_is_traced_to_the_same_text_again():
    where = "dqn-prioritized", "CartPole-v1"
    again = algorithm.__wrapped__(*where)
    assert str(jax.make_jaxpr(again.update)(CONFIGS[where[0]], shapes(*where)[0])) == program(
        *where
    )


@pytest.mark.slow
@of_fields(static=True)
def test_every_static_field_changes_what_is_learned(name, field):
    where = setting(name, field)
    other_network = shapes(*where, field)[1] != shapes(*where)[1]
    assert other_network or not same(trained(*where, field), trained(*where))


@functools.cache
def trained(name, env_id, *fields):
    train = jax.jit(jaxrl.train, static_argnums=(0, 3))
    state, _ = train(algorithm(name, env_id), changed(name, *fields), jax.random.key(0), 10)
    return state.params


@pytest.mark.parametrize("name", CHANGES)
def test_traced_fields_do_not_retrace_and_static_ones_do(name):
    traces = 0

    @jax.jit
    def update(config, state):
        nonlocal traces
        traces += 1
        return algorithm(name).update(config, state)

    state = jax.eval_shape(algorithm(name).init, CONFIGS[name], jax.random.key(0))
    for field in dataclasses.fields(CONFIGS[name]):
        if not is_static(field):
            update.eval_shape(changed(name, field.name), state)
    assert traces == 1
    update.eval_shape(changed(name, "activation"), state)
    assert traces == 2


@pytest.mark.parametrize("name", CHANGES)
def test_whole_numbers_do_for_every_traced_field(name):
    traced = [field.name for field in dataclasses.fields(CONFIGS[name]) if not is_static(field)]
    state, _ = shapes(name, "CartPole-v1")
    whole = CONFIGS[name].replace(**dict.fromkeys(traced, 1))
    after, _ = jax.eval_shape(algorithm(name).update, whole, state)
    assert described(after) == described(state)


EXTREMES = {
    "learning_rate": [0.0],
    "gamma": [0.0, 1.0],
    "gae_lambda": [0.0, 1.0],
    "trace_lambda": [0.0],
    "anneal_updates": [1],
    "max_grad_norm": [1e-8, 1e8],
    "value_coef": [0.0, 1e3],
    "entropy_coef": [0.0, 1e3],
    "final_entropy_coef": [1e3],
    "clip_epsilon": [1e-8, 1e8],
    "target_kl": [1e-20],
    "adam_eps": [1e-30],
    "rmsprop_eps": [1e-30],
    "rmsprop_decay": [0.0, 1.0],
    "rmsprop_initial": [1e8],
    "log_eps": [0.0, 1e-30, 1.0],
    "rho_bar": [1e-8, math.inf],
    "c_bar": [1e-8, math.inf],
    "policy_rho_bar": [1e-8, math.inf],
    "initial_epsilon": [0.0],
    "final_epsilon": [0.0, 1.0],
    "exploration_steps": [1e-8, 1e12],
    "learning_starts": [0, 10**9],
    "target_period": [1, 10**9],
    "priority_exponent": [0.0, 10.0],
    "importance_exponent": [0.0, 1.0],
    "epsilon_base": [0.0, 1.0],
    "epsilon_exponent": [1e-8, 1e8],
    "priority_max_share": [0.0, 1.0],
}


def test_every_traced_field_has_extremes():
    assert {field.name for _, field in FIELDS if not is_static(field)} == set(EXTREMES)


@everything
def test_extreme_but_legal_values_give_finite_numbers(name):
    config, state = CONFIGS[name], start(name)
    values = {field: x for field, x in EXTREMES.items() if getattr(config, field, None) is not None}
    for field, extremes in values.items():
        for value in extremes:
            after, metrics = learn(name, config.replace(**{field: value}), state)
            finite = [np.isfinite(x).all() for x in jax.tree.leaves((after.params, metrics))]
            assert all(finite), (field, value)


@everything
def test_a_learning_rate_of_zero_learns_nothing(name):
    state = start(name)
    after, _ = learn(name, CONFIGS[name].replace(learning_rate=0.0), state)
    assert same(after.params, state.params)


BAD: dict[Any, list[tuple[str, Any]]] = {
    jaxrl.A2CConfig: [
        ("learning_rate", -1e-3),
        ("anneal_updates", -1),
        ("gamma", 1.5),
        ("gae_lambda", -0.1),
        ("value_coef", -1.0),
        ("entropy_coef", math.inf),
        ("final_entropy_coef", -0.1),
        ("max_grad_norm", 0.0),
        ("rmsprop_decay", 1.1),
        ("rmsprop_eps", 0.0),
        ("rmsprop_initial", -1.0),
        ("log_eps", -1e-6),
        ("num_steps", 0),
        ("min_training_batch", 0),
        ("eps_inside_root", 1),
        ("sum_losses", None),
        ("normalize_observations", "yes"),
        ("core", "transformer"),
        ("core_size", 0),
        ("use_last_action_reward", "yes"),
        ("hidden_sizes", (8, 0)),
        ("hidden_sizes", 8),
    ],
    jaxrl.ImpalaConfig: [
        ("learning_rate", math.nan),
        ("anneal_updates", math.inf),
        ("gamma", jnp.array([0.9, 1.1])),
        ("trace_lambda", 1.5),
        ("rho_bar", 0.0),
        ("c_bar", math.nan),
        ("policy_rho_bar", -1.0),
        ("value_coef", "half"),
        ("entropy_coef", -1.0),
        ("max_grad_norm", -1.0),
        ("rmsprop_decay", -0.1),
        ("rmsprop_eps", -1.0),
        ("num_steps", 2.0),
        ("lag", -1),
        ("lag", True),
        ("off_policy_correction", "no"),
        ("sum_losses", 0),
        ("normalize_observations", 1),
        ("core", "transformer"),
    ],
    jaxrl.DQNConfig: [
        ("learning_rate", None),
        ("anneal_updates", -1),
        ("adam_eps", 0.0),
        ("max_grad_norm", 0.0),
        ("gamma", -0.5),
        ("initial_epsilon", 1.5),
        ("final_epsilon", -0.1),
        ("exploration_steps", 0.0),
        ("learning_starts", -1),
        ("target_period", 0),
        ("priority_exponent", -0.5),
        ("importance_exponent", 2.0),
        ("num_steps", 0),
        ("num_gradient_steps", 0),
        ("batch_size", 0),
        ("replay_size", -5),
        ("replay_size", 1e6),
        ("frame_stack", 0),
        ("n_step", 0),
        ("double", 1),
        ("dueling", None),
        ("prioritized", "rank"),
        ("core", "transformer"),
    ],
    jaxrl.R2D2Config: [
        ("learning_rate", -1e-3),
        ("anneal_updates", -1),
        ("adam_eps", -1.0),
        ("max_grad_norm", 0.0),
        ("gamma", 1.5),
        ("epsilon_base", 1.5),
        ("epsilon_exponent", 0.0),
        ("learning_starts", math.nan),
        ("target_period", 0),
        ("priority_exponent", -1.0),
        ("importance_exponent", -1.0),
        ("priority_max_share", 1.1),
        ("num_steps", 0),
        ("burn_in", -1),
        ("unroll_length", 0),
        ("n_step", 0),
        ("num_gradient_steps", True),
        ("batch_size", "64"),
        ("replay_size", 0),
        ("frame_stack", 0),
        ("dueling", 1),
        ("rescale_values", None),
        ("core", "transformer"),
    ],
}


@pytest.mark.parametrize(
    ("config_class", "field", "value"),
    [(config_class, *bad) for config_class, rows in BAD.items() for bad in rows],
)
def test_a_bad_value_is_refused_by_name(config_class, field, value):
    with pytest.raises(ValueError, match=f"{config_class.__name__}.{field} must be .*, got "):
        config_class(**{field: value})
    with pytest.raises(ValueError, match=f"{config_class.__name__}.{field} must be .*, got "):
        config_class().replace(**{field: value})


def test_every_field_of_the_configs_has_a_bad_value():
    shared = {field.name for field in dataclasses.fields(build.NetworkConfig)}
    for config_class, rows in BAD.items():
        fields = {field.name for field in dataclasses.fields(config_class)} - shared
        assert fields <= {field for field, _ in rows}


def test_dqn_with_a_memory_is_refused_by_name():
    with pytest.raises(ValueError, match=r"DQN has no memory, got core='gru'; use jaxrl.r2d2"):
        jaxrl.DQNConfig(core="gru")


@pytest.mark.parametrize(
    ("name", "env_id", "changes", "message"),
    [
        ("r2d2", "CartPole-v1", {"core": None}, "R2D2 needs a network with a memory.*core=None"),
        (
            "dqn", "CartPole-v1", {"replay_size": 10},
            "DQNConfig.replay_size = 10 over num_envs = 2 .* num_steps = 4 and n_step = 1",
        ),
        (
            "dqn", "CartPole-v1", {"n_step": 12},
            "DQNConfig.replay_size = 32 over num_envs = 2 .* num_steps = 4 and n_step = 12",
        ),
        (
            "r2d2", "CartPole-v1", {"replay_size": 22},
            "R2D2Config.replay_size = 22 over num_envs = 2 .* = 5 steps .*num_steps = 4",
        ),
        ("dqn", "CartPole-v1", {"frame_stack": 4}, r"DQNConfig.frame_stack = 4.*shape \(4,\)"),
        ("r2d2", "CartPole-v1", {"frame_stack": 4}, r"R2D2Config.frame_stack = 4.*shape \(4,\)"),
        ("dqn", "Breakout-MinAtar", {"frame_stack": 3}, r"frame_stack = 3.*shape \(10, 10, 4\)"),
        ("r2d2", "Breakout-MinAtar", {"frame_stack": 3}, r"frame_stack = 3.*shape \(10, 10, 4\)"),
        ("dqn", "Pendulum-v1", {}, "needs Discrete actions, got the space Box"),
        ("r2d2", "Pendulum-v1", {}, "needs Discrete actions, got the space Box"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_environment_is_refused_by_name(name, env_id, changes, message):
    algo, config = algorithm(name, env_id), CONFIGS[name].replace(**changes)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(algo.init, config, jax.random.key(0))


@pytest.mark.parametrize(
    ("name", "changes"),
    [("dqn", {"replay_size": 12}), ("dqn", {"n_step": 11}), ("r2d2", {"replay_size": 24})],
)
def test_a_replay_that_is_just_large_enough_is_taken(name, changes):
    config = CONFIGS[name].replace(**changes)
    state = jax.eval_shape(algorithm(name).init, config, jax.random.key(0))
    assert state.memory.capacity >= 6


# --- acting --------------------------------------------------------------------------------------


@functools.cache
def actor(algo):
    return jax.jit(algo.act, static_argnums=5)


@everything
def test_acting_is_greedy_without_chance_and_samples_with_it(name):
    config, state, obs = CONFIGS[name], start(name), jnp.zeros((64, 4))
    chance = {"dqn": {"final_epsilon": 1.0}, "r2d2": {"epsilon_base": 1.0}}
    exploring = config.replace(**chance.get(algorithm(name).name, {}))

    def act(config, key, greedy):
        _, action = actor(algorithm(name))(config, state, (), obs, jax.random.key(key), greedy)
        assert (action.shape, action.dtype) == ((64,), jnp.int32)
        return np.asarray(action)

    assert set(act(exploring, 0, False)) == {0, 1}
    assert (act(exploring, 0, False) != act(exploring, 1, False)).any()
    greedy = act(exploring, 0, True)
    assert len(set(greedy)) == 1
    assert (act(exploring, 1, True) == greedy).all()


def random_params(params):
    """Of a size at which the outputs, and what is remembered, differ from step to step."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    drawn = [jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def network_of(name, config):
    spaces = algorithm(name).env.observation_space, algorithm(name).env.action_space
    if isinstance(config, jaxrl.R2D2Config):
        return build.q_network(*spaces, config, config.dueling)
    return build.actor_critic(*spaces, config)


def greedy_actions(outputs):
    """Of action values, or of a distribution and a value."""
    return jnp.argmax(outputs, -1) if isinstance(outputs, jax.Array) else outputs[0].mode()


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_acting_step_by_step_equals_the_unrolled_sequence(name):
    config, num_steps, num_envs = CONFIGS[name], 8, 3
    state = start(name)
    state = state._replace(params=random_params(state.params))
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(num_steps, num_envs, 4)).astype(np.float32)
    reward = rng.normal(size=(num_steps, num_envs)).astype(np.float32)
    first = rng.random((num_steps, num_envs)) < 0.2
    first[0] = True
    memory: Any = ()
    actions = []
    for t in range(num_steps):
        if t:
            memory = memory._replace(last_reward=jnp.asarray(reward[t]), first=first[t])
        memory, action = actor(algorithm(name))(
            config, state, memory, obs[t], jax.random.key(t), True
        )
        actions.append(np.asarray(action))
    last_action = np.stack([np.zeros_like(actions[0]), *actions[:-1]])
    inputs = jaxrl.Inputs(*map(jnp.asarray, (obs, first, last_action, reward)))
    network = network_of(name, config)
    core, outputs = jax.jit(functools.partial(recurrent.apply, network))(
        state.params, recurrent.initial_core(network, num_envs), inputs
    )
    assert_close(memory.core, core, rtol=1e-4, atol=1e-5)
    expected = np.asarray(greedy_actions(outputs))
    assert (np.stack(actions) == expected).all()
    assert set(expected.ravel()) == {0, 1}


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_a_first_observation_makes_the_agent_forget(name):
    config, algo = CONFIGS[name], algorithm(name)
    state = start(name)
    state = state._replace(params=random_params(state.params))
    obs = jax.random.normal(jax.random.key(0), (3, 4))
    memories = []
    for first in (True, False):
        full = jaxrl.Memory(
            core=jax.tree.map(lambda x: x + 0.5, algo.initial_core(config, 3)),
            last_action=jnp.ones(3, jnp.int32),
            last_reward=jnp.ones(3),
            first=jnp.full(3, first),
        )
        memories.append(actor(algo)(config, state, full, obs, jax.random.key(0), True)[0])
    fresh, _ = actor(algo)(config, state, (), obs, jax.random.key(0), True)
    assert same(memories[0], fresh)
    assert not same(memories[1].core, fresh.core)
    assert not fresh.first.any()


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_a_loaded_policy_remembers_between_calls_until_it_is_reset(name, run_in_two_parts):
    result = run_in_two_parts(name)
    policy = jaxrl.load_policy(result.run_dir)
    obs = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    memories = []
    for _ in range(2):
        action, _ = policy(obs[0]), memories.append(policy.memory)
        assert action.shape == ()
    assert not same(memories[0].core, memories[1].core)
    policy.reset()
    policy(obs[0])
    assert same(policy.memory, memories[0])
    policy.observe(reward=1.0, first=True)
    policy(obs[0])
    assert same(policy.memory, memories[0])
    expected, _ = actor(algorithm(name))(
        CONFIGS[name], result.state, (), obs[:1], jax.random.key(0), True
    )
    assert_close(expected.core, memories[0].core, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        ValueError, match=r"remembers 1 episodes, got observations of 3; call reset"
    ):
        policy(obs)
    policy.reset()
    assert policy(obs).shape == (3,)


@quickly_for("ppo", "a2c-lstm", "impala", "dqn", "r2d2")
def test_evaluation_plays_whole_episodes(name):
    algo = algorithm(name)
    evaluate = jax.jit(jaxrl.evaluate, static_argnums=(0, 3, 5, 6))
    env = algo.env.for_evaluation(3)
    scores = evaluate(algo, CONFIGS[name], start(name), env, jax.random.key(0), 2, True)
    assert scores.episode_length.shape == (6,)
    assert ((scores.episode_length >= 5) & (scores.episode_length <= 500)).all()
    assert (scores.episode_return == scores.episode_length).all()
