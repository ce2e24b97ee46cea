"""PPO: proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347).

With advantages A by GAE(lambda) (eq. 11 and 12) and `ratio = pi(a|s) / pi_old(a|s)`, each of
`num_epochs` passes over the rollout minimizes, minibatch by minibatch (eq. 7 and 9),

    -min(ratio A, clip(ratio, 1 - eps, 1 + eps) A) + c_v (V - V_target)^2 / 2 - c_e entropy

with the options of Huang et al. 2022. Truncated episodes bootstrap from their last observation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl import checks
from jaxrl import config as fields
from jaxrl.algos import actor_critic, hyperparameters
from jaxrl.device_axis import SINGLE_DEVICE, Axis, axis_of
from jaxrl.networks import recurrent
from jaxrl.ops import minibatches, normalization, optimizers, returns
from jaxrl.ops.masks import finite_where_invalid, masked_sum, zero_invalid
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Algorithm, Array, Env, Metrics, PyTree, Trajectory

Surrogate = Callable[["PPOConfig", Array, Array], Array]
LOSSES = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


@fields.config
class PPOConfig(actor_critic.ActorCriticConfig):
    """Hyperparameters of PPO. Plain fields are traced leaves; `static` ones shape the program."""

    gae_lambda: float = 0.95
    """lambda of GAE, in [0, 1]; 1 for n-step advantages (Schulman et al. 2016)."""
    clip_epsilon: float = 0.2
    """Bound of pi / pi_old: it is clipped to 1 +- this (Schulman et al. 2017, eq. 7)."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    target_kl: float | None = None
    """Stop the epochs of an update once the approximate KL divergence exceeds this."""
    num_epochs: int = fields.static(4)
    """Passes over a rollout in an update, at most."""
    num_minibatches: int = fields.static(4)
    """Parts of a rollout in an epoch: transitions, or whole environments if there is a memory."""
    clip_value: bool = fields.static(False)
    """Clip the change of a value to +- `clip_epsilon`; for rewards of small scale (Atari's)."""
    normalize_advantages: bool = fields.static(True)
    """Standardize the advantages of each minibatch."""
    normalize_rewards: bool = fields.static(False)
    """Divide rewards by the running deviation of the discounted return."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = () if self.target_kl is None else ("target_kl",)
        checks.traced_fields(self, checks.POSITIVE, "adam_eps", "clip_epsilon", *given)
        checks.traced_fields(self, checks.UNIT_INTERVAL, "gae_lambda")
        checks.fields(self, checks.integer, "num_epochs", "num_minibatches")
        checks.fields(self, checks.flag, "clip_value", "normalize_advantages", "normalize_rewards")


class PPOState(NamedTuple):
    """The arrays that PPO carries from update to update."""

    params: PyTree
    opt_state: PyTree
    simulation: Simulation
    key: Array
    num_updates: Array
    obs_statistics: normalization.ObsStatistics
    reward_scale: normalization.RewardScale | None


class Batch(NamedTuple):
    """B sequences of L steps to learn from; without a memory each transition is a sequence."""

    trajectory: Trajectory  # leaves [L, B, ...]
    value: Array  # [L, B] by the policy that acted
    advantage: Array  # [L, B]
    target: Array  # [L, B] of the value
    core: PyTree  # [1, B, ...] the memory before the sequences


def clipped_surrogate(config: PPOConfig, ratio: Array, advantage: Array) -> Array:
    """Return PPO's surrogate of each transition, eq. 7."""
    clipped_ratio = jnp.clip(ratio, 1 - config.clip_epsilon, 1 + config.clip_epsilon)
    return jnp.minimum(ratio * advantage, clipped_ratio * advantage)


def ppo(
    env: Env, network: nn.Module | None = None, surrogate: Surrogate = clipped_surrogate
) -> Algorithm:
    """Return PPO on `env`.

    Args:
      network: a Flax module, `obs [B, ...] -> (distribution, value [B])` or one with a memory
        (`jaxrl.networks.recurrent`); None builds one from the config.
      surrogate: `surrogate(config, ratio, advantage)`, which PPO maximizes: a number for each
        transition, in the shape of `ratio`. It replaces `clipped_surrogate` in variations of PPO,
        which then bear its name.
    """
    checks.function("surrogate", surrogate)
    agent, axis = actor_critic.agent_of(env, network), axis_of(env)

    def init(config: PPOConfig, key: Array, simulation: Simulation | None = None) -> PPOState:
        hyperparameters.check_split(config, env, recurrent.is_recurrent(agent.network_of(config)))
        params, simulation, key = actor_critic.start(agent, config, key, simulation)
        opt_state = optimizer_of(config, 0).init(params)
        obs_statistics = hyperparameters.start_obs_statistics(config, env)
        scale = normalization.start_reward_scale(env.num_envs) if config.normalize_rewards else None
        return PPOState(params, opt_state, simulation, key, jnp.int32(0), obs_statistics, scale)

    def update(config: PPOConfig, state: PPOState) -> tuple[PPOState, Metrics]:
        key, rollout_key, shuffle_key = jax.random.split(state.key, 3)
        network, apply = agent.network_of(config), agent.apply(config, state.obs_statistics)
        # Rollout
        simulation, trajectory = actor_critic.collect(
            env, apply, state.params, state.simulation, rollout_key, config.num_steps
        )
        obs_statistics = normalization.update_obs_statistics(state.obs_statistics, trajectory, axis)
        scale, trajectory = normalization.update_reward_scale(
            state.reward_scale, trajectory, config.gamma, axis
        )
        # Advantages
        values = actor_critic.values_of(network, apply, state.params, trajectory)
        last_value = actor_critic.bootstrap(apply, state.params, simulation)
        advantages = returns.generalized_advantages(  # eq. 11 and 12
            trajectory.reward, values, last_value, trajectory.terminated, trajectory.truncated,
            config.gamma, config.gae_lambda,
        )  # fmt: skip
        core = recurrent.one_step(state.simulation.core)
        batch = Batch(trajectory, values, advantages, advantages + values, core)
        if not recurrent.is_recurrent(network):  # [T, N, ...] as [1, T * N, ...]
            batch = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), batch)

        # Epochs
        def objective(params: PyTree, minibatch: Batch) -> tuple[Array, Metrics]:
            core = jax.tree.map(lambda x: x[0], minibatch.core)
            _, (distribution, value) = apply(params, core, minibatch.trajectory.inputs)
            return loss(config, distribution, value, minibatch, axis, surrogate)

        max_kl = config.target_kl
        (params, opt_state), epochs, losses = minibatches.learn_in_epochs(
            objective, optimizer_of(config, state.num_updates), (state.params, state.opt_state),
            batch, axis.device_key(shuffle_key), config.num_epochs, config.num_minibatches, LOSSES,
            stop=None if max_kl is None else lambda means: means["approx_kl"] > max_kl, axis=axis,
        )  # fmt: skip
        # Metrics
        metrics = actor_critic.metrics(
            env, config, state.num_updates, simulation, trajectory, losses | {"epochs": epochs},
            gradient_steps=epochs * config.num_minibatches,
        )  # fmt: skip
        count = state.num_updates + 1
        return PPOState(params, opt_state, simulation, key, count, obs_statistics, scale), metrics

    name = "ppo" if surrogate is clipped_surrogate else name_of(surrogate)
    make, act = partial(ppo, surrogate=surrogate), partial(actor_critic.act, agent)
    core = agent.initial_core
    return Algorithm(init, update, act, env, network, name, PPOConfig, core, make=make)


def name_of(surrogate: Surrogate) -> str:
    """Return PPO's name with a surrogate: that of the function, "own_ppo" if it has none."""
    name = getattr(getattr(surrogate, "func", surrogate), "__name__", "")
    return name if name.isidentifier() else "own_ppo"  # not <lambda>


def optimizer_of(config: PPOConfig, num_updates: Array | int) -> optax.GradientTransformation:
    """Return the optimizer of the update after `num_updates`."""
    rate = hyperparameters.annealed_learning_rate(config, num_updates)
    return optimizers.adam(rate, config.adam_eps, config.max_grad_norm)


def loss(
    config: PPOConfig, distribution: Any, value: Array, batch: Batch, axis: Axis = SINGLE_DEVICE,
    surrogate: Surrogate = clipped_surrogate,
) -> tuple[Array, Metrics]:  # fmt: skip
    """Return the loss of a minibatch over its valid transitions, and its parts."""
    trajectory, valid = batch.trajectory, batch.trajectory.valid
    total = axis.mean_count(valid.astype(jnp.float32))

    def mean(x: Array) -> Array:
        return masked_sum(x, valid) / total

    distribution = finite_where_invalid(distribution, valid)
    value, old_value, advantage, target = zero_invalid(
        (value, batch.value, batch.advantage, batch.target), valid
    )
    if config.normalize_advantages:
        centered = advantage - axis.mean(mean(advantage))
        advantage = centered / (jnp.sqrt(axis.mean(mean(centered**2))) + 1e-8)
    log_ratio = distribution.log_prob(trajectory.action) - trajectory.extras.log_prob
    log_ratio = zero_invalid(log_ratio, valid)
    ratio = jnp.exp(log_ratio)  # eq. 6
    gain = surrogate(config, ratio, advantage)
    if getattr(gain, "shape", None) != ratio.shape:
        form = f"a number for each transition, an array {list(ratio.shape)}"
        raise checks.refuse("the result of surrogate", form, gain)
    policy_loss = -mean(gain)  # eq. 7
    error = (value - target) ** 2  # eq. 9, L^VF
    if config.clip_value:
        change = jnp.clip(value - old_value, -config.clip_epsilon, config.clip_epsilon)
        error = jnp.maximum(error, (old_value + change - target) ** 2)
    value_loss = 0.5 * mean(error)
    entropy = mean(distribution.entropy())
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy  # eq. 9
    approx_kl = mean(ratio - 1 - log_ratio)
    clip_fraction = mean(jnp.abs(ratio - 1) > config.clip_epsilon)
    parts = (loss, policy_loss, value_loss, entropy, approx_kl, clip_fraction)
    return loss, dict(zip(LOSSES, parts, strict=True))
