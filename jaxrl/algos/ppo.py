"""PPO: proximal policy optimization with the clipped surrogate (Schulman et al. 2017,
arXiv 1707.06347).

With `ratio = pi(a|s) / pi_old(a|s)` and advantages A by GAE(lambda), each of `num_epochs` passes
over the rollout minimizes, minibatch by minibatch (eq. 7 and 9),

    -min(ratio A, clip(ratio, 1 - eps, 1 + eps) A) + c_v (V - V_target)^2 / 2 - c_e entropy

with the value loss clipped alike if asked to, advantages normalized per minibatch, gradients
clipped by global norm and Adam's learning rate annealed, as in Huang et al. 2022, "The 37
implementation details of PPO". Truncated episodes bootstrap from their true last observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import config as fields
from jaxrl import networks, normalize, optim, returns
from jaxrl.rollout import Simulation, episode_metrics, rollout, start
from jaxrl.types import Algorithm, Array, Env, Metrics, PyTree, Trajectory


@fields.config
class PPOConfig(fields.Config):
    """Hyperparameters of PPO. Plain fields are traced leaves; `static` ones shape the program."""

    learning_rate: float = 2.5e-4
    anneal_updates: int = 0
    """Updates over which the learning rate falls linearly to 0; 0 keeps it constant."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5
    target_kl: float | None = None
    """Stop the epochs of an update once the approximate KL divergence exceeds this."""
    num_steps: int = fields.static(128)
    """Steps of each environment in a rollout (T)."""
    num_epochs: int = fields.static(4)
    num_minibatches: int = fields.static(4)
    clip_value: bool = fields.static(False)
    """Clip the critic's change alike. Holds back values larger than `clip_epsilon`; meant for
    rewards of small scale, such as Atari's clipped ones."""
    normalize_advantages: bool = fields.static(True)
    normalize_observations: bool = fields.static(False)
    normalize_rewards: bool = fields.static(False)
    torso: str = fields.static("auto")
    """One of `networks.TORSOS`, or "auto". This and the next three are unused if a network is
    passed to `ppo`."""
    hidden_sizes: tuple[int, ...] | None = fields.static(None)
    activation: str | None = fields.static(None)
    compute_dtype: str = fields.static("float32")

    def __post_init__(self) -> None:
        fields.check_positive(self, "max_grad_norm", "adam_eps", "clip_epsilon")
        if self.target_kl is not None:
            fields.check_positive(self, "target_kl")
        fields.check_not_negative(self, "learning_rate", "anneal_updates")
        fields.check_not_negative(self, "value_coef", "entropy_coef")
        fields.check_unit_interval(self, "gamma", "gae_lambda")
        fields.check_count(self, "num_steps", "num_epochs", "num_minibatches")
        fields.check_switch(self, "clip_value", "normalize_advantages")
        fields.check_switch(self, "normalize_observations", "normalize_rewards")
        fields.check_sizes(self, "hidden_sizes")
        fields.check_choice(self, "torso", ("auto", *networks.TORSOS))
        fields.check_choice(self, "activation", (None, *networks.ACTIVATIONS))
        fields.check_choice(self, "compute_dtype", ("float32", "bfloat16"))


class PPOState(NamedTuple):
    """Everything PPO carries from update to update; arrays only."""

    params: PyTree
    opt_state: PyTree
    simulation: Simulation
    key: Array
    num_updates: Array
    obs_statistics: normalize.RunningStatistics | None
    reward_scale: normalize.RewardScale | None


class PolicyExtras(NamedTuple):
    """What the behaviour policy knew when it acted; leaves `[T, N]`."""

    log_prob: Array
    value: Array


class Batch(NamedTuple):
    """Transitions to learn from, leaves `[B, ...]`."""

    obs: PyTree
    action: Array
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    valid: Array


def ppo(env: Env, network: nn.Module | None = None) -> Algorithm:
    """PPO on `env`.

    Args:
      network: a Flax module, `obs [B, ...] -> (distribution, value [B])`; None builds one from
        the config's torso.
    """

    def network_of(config: PPOConfig) -> nn.Module:
        if network is not None:
            return network
        return networks.actor_critic(
            env.observation_space,
            env.action_space,
            config.torso,
            config.hidden_sizes,
            config.activation,
            jnp.dtype(config.compute_dtype),
        )

    def init(config: PPOConfig, key: Array) -> PPOState:
        check_sizes(config, env)
        network_key, env_key, key = jax.random.split(key, 3)
        simulation = start(env, env_key)
        space = env.observation_space
        params = network_of(config).init(network_key, jnp.zeros((1, *space.shape), space.dtype))
        return PPOState(
            params=params,
            opt_state=optim.adam(config.adam_eps, config.max_grad_norm).init(params),
            simulation=simulation,
            key=key,
            num_updates=jnp.int32(0),
            obs_statistics=normalize.start(space.shape) if config.normalize_observations else None,
            reward_scale=normalize.start_rewards(env.num_envs)
            if config.normalize_rewards
            else None,
        )

    def apply(config: PPOConfig, state: PPOState, params: PyTree, obs: PyTree) -> Any:
        if state.obs_statistics is not None:
            obs = normalize.standardize(state.obs_statistics, obs)
        return network_of(config).apply(params, obs)

    def update(config: PPOConfig, state: PPOState) -> tuple[PPOState, Metrics]:
        key, rollout_key, shuffle_key = jax.random.split(state.key, 3)

        def policy(obs: PyTree, key: Array) -> tuple[Array, PolicyExtras]:
            distribution, value = apply(config, state, state.params, obs)
            action = distribution.sample(key)
            return action, PolicyExtras(distribution.log_prob(action), value)

        def objective(params: PyTree, minibatch: Batch) -> tuple[Array, Metrics]:
            distribution, value = apply(config, state, params, minibatch.obs)
            return loss(config, distribution, value, minibatch)

        simulation, trajectory = rollout(
            env, policy, state.simulation, rollout_key, config.num_steps
        )
        values = trajectory.extras.value
        if networks.has_own_critic(network_of(config)):
            # One batch after the rollout; the same values within it are then dead code.
            _, values = jax.vmap(apply, (None, None, None, 0))(
                config, state, state.params, trajectory.obs
            )
        _, last_value = apply(config, state, state.params, simulation.timestep.obs)
        metrics = episode_metrics(simulation, trajectory)

        obs_statistics, reward_scale = state.obs_statistics, state.reward_scale
        if obs_statistics is not None:
            obs_statistics = normalize.update(obs_statistics, trajectory.obs, trajectory.valid)
        if reward_scale is not None:
            ended = trajectory.terminated | trajectory.truncated
            reward_scale, reward = normalize.scale_rewards(
                reward_scale, trajectory.reward, ended, trajectory.valid, config.gamma
            )
            trajectory = trajectory._replace(reward=reward)

        batch = targets(config, trajectory, values, last_value)
        params, opt_state, losses = learn(config, objective, state, batch, shuffle_key)
        return PPOState(
            params=params,
            opt_state=opt_state,
            simulation=simulation,
            key=key,
            num_updates=state.num_updates + 1,
            obs_statistics=obs_statistics,
            reward_scale=reward_scale,
        ), metrics | losses

    def act(
        config: PPOConfig, state: PPOState, carry: PyTree, obs: PyTree, key: Array, greedy: bool
    ) -> tuple[PyTree, Array]:
        distribution, _ = apply(config, state, state.params, obs)
        return carry, distribution.mode() if greedy else distribution.sample(key)

    return Algorithm(init, update, act, env, network, "ppo", PPOConfig)


LOSSES = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def check_sizes(config: PPOConfig, env: Env) -> None:
    """Raise unless the rollout splits evenly into minibatches."""
    size = env.num_envs * config.num_steps
    if size % config.num_minibatches:
        raise ValueError(
            f"num_envs * num_steps = {env.num_envs} * {config.num_steps} = {size} is not divisible "
            f"by PPOConfig.num_minibatches = {config.num_minibatches}"
        )


def targets(config: PPOConfig, trajectory: Trajectory, values: Array, last_value: Array) -> Batch:
    """Advantages and value targets of a rollout, flattened to `[T * N, ...]`."""
    advantage = returns.generalized_advantages(
        trajectory.reward,
        values,
        last_value,
        trajectory.terminated,
        trajectory.truncated,
        config.gamma,
        config.gae_lambda,
    )
    batch = Batch(
        obs=trajectory.obs,
        action=trajectory.action,
        log_prob=trajectory.extras.log_prob,
        value=values,
        advantage=advantage,
        target=advantage + values,
        valid=trajectory.valid.astype(jnp.float32),
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


def learn(
    config: PPOConfig,
    objective: Callable[[PyTree, Batch], tuple[Array, Metrics]],
    state: PPOState,
    batch: Batch,
    key: Array,
) -> tuple[PyTree, PyTree, Metrics]:
    """Minibatch epochs over a rollout, until `num_epochs` or `target_kl`.

    Returns:
      Parameters, optimizer state, and losses averaged over the minibatches.
    """
    optimizer = optim.adam(config.adam_eps, config.max_grad_norm)
    learning_rate = optim.linear_decay(
        config.learning_rate, state.num_updates, config.anneal_updates
    )

    def step(learner: tuple[PyTree, PyTree], rows: Array) -> tuple[Any, Metrics]:
        params, opt_state = learner
        minibatch = jax.tree.map(lambda x: x[rows], batch)
        grads, losses = jax.grad(objective, has_aux=True)(params, minibatch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optim.apply_updates(params, updates, learning_rate), opt_state), losses

    def epoch(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        learner, count, _, sums = carry
        num_rows = batch.valid.shape[0]
        rows = shuffled_rows(jax.random.fold_in(key, count), config.num_minibatches, num_rows)
        learner, losses = jax.lax.scan(step, learner, rows)
        means = jax.tree.map(jnp.mean, losses)
        return learner, count + 1, means["approx_kl"], jax.tree.map(jnp.add, sums, means)

    def unfinished(carry: tuple[Any, ...]) -> Array:
        _, count, approx_kl, _ = carry
        more = count < config.num_epochs
        return more if config.target_kl is None else more & ~(approx_kl > config.target_kl)

    no_losses = dict.fromkeys(LOSSES, jnp.float32(0))
    learner = (state.params, state.opt_state)
    (params, opt_state), epochs, _, sums = jax.lax.while_loop(
        unfinished, epoch, (learner, jnp.int32(0), jnp.float32(0), no_losses)
    )
    losses = {name: total / epochs for name, total in sums.items()}
    rate = jnp.asarray(learning_rate, jnp.float32)
    return params, opt_state, losses | {"epochs": epochs, "learning_rate": rate}


def shuffled_rows(key: Array, num_minibatches: int, num_rows: int) -> Array:
    """A random split of a rollout's rows, `[num_minibatches, rows of each]`.

    Row numbers are the low bits of random words, so sorting one array shuffles them: on a CPU ten
    times faster than `jax.random.permutation`, which sorts pairs, twice. Words that agree in their
    random bits keep their order, which favours no minibatch by more than a few rows.
    """
    low = jnp.uint32((1 << (num_rows - 1).bit_length()) - 1)
    words = jax.random.bits(key, (num_rows,)) & ~low | jnp.arange(num_rows, dtype=jnp.uint32)
    return (jnp.sort(words) & low).astype(jnp.int32).reshape(num_minibatches, -1)


def loss(config: PPOConfig, distribution: Any, value: Array, batch: Batch) -> tuple[Array, Metrics]:
    """The clipped surrogate, value and entropy losses, over valid transitions."""
    total = jnp.maximum(batch.valid.sum(), 1.0)

    def mean(x: Array) -> Array:
        return (x * batch.valid).sum() / total

    advantage = batch.advantage
    if config.normalize_advantages:
        centered = advantage - mean(advantage)
        advantage = centered * jax.lax.rsqrt(mean(centered**2) + 1e-8)

    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1 - config.clip_epsilon, 1 + config.clip_epsilon)
    policy_loss = -mean(jnp.minimum(ratio * advantage, clipped_ratio * advantage))

    error = (value - batch.target) ** 2
    if config.clip_value:
        change = jnp.clip(value - batch.value, -config.clip_epsilon, config.clip_epsilon)
        error = jnp.maximum(error, (batch.value + change - batch.target) ** 2)
    value_loss = 0.5 * mean(error)

    entropy = mean(distribution.entropy())
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    return loss, {
        "loss": loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": mean(ratio - 1 - log_ratio),
        "clip_fraction": mean(jnp.abs(ratio - 1) > config.clip_epsilon),
    }
