"""The hyperparameters that all algorithms have, and what follows from them alone."""

from __future__ import annotations

from typing import Any

from jaxrl import checks
from jaxrl import config as fields
from jaxrl.device_axis import axis_of
from jaxrl.networks import build
from jaxrl.ops import normalization, optimizers
from jaxrl.types import Array, Env


@fields.config
class AlgorithmConfig(build.NetworkConfig):
    """Hyperparameters that all algorithms have; each has defaults of its own."""

    learning_rate: float = 1e-3
    """Step size of the optimizer, before annealing; presets for Atari have a smaller one."""
    anneal_updates: float = 0
    """Updates over which the learning rate falls linearly to 0; 0 keeps it constant."""
    max_grad_norm: float = 10.0
    """Global norm to which gradients are clipped; inf for no clipping."""
    gamma: float = 0.99
    """Discount of a reward one step later, in [0, 1]."""
    num_steps: int = fields.static(32)
    """Steps of each environment in a rollout (T), after which the agent learns."""
    normalize_observations: bool = fields.static(False)
    """Standardize observations by the running mean and variance of each element, of images each
    pixel. A replay keeps them as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.traced_fields(self, checks.BOUND, "max_grad_norm")
        checks.traced_fields(self, checks.NOT_NEGATIVE, "learning_rate", "anneal_updates")
        checks.traced_fields(self, checks.UNIT_INTERVAL, "gamma")
        checks.fields(self, checks.integer, "num_steps")
        checks.fields(self, checks.flag, "normalize_observations")


def annealed_learning_rate(config: AlgorithmConfig, num_updates: Array | int) -> Array:
    """Return the learning rate of the update after `num_updates`."""
    return optimizers.linear_schedule(config.learning_rate, 0.0, num_updates, config.anneal_updates)


def steps_per_update(config: AlgorithmConfig, env: Env) -> int:
    """Return the environment steps of an update, over all environments and devices."""
    return env.num_envs * axis_of(env).size * config.num_steps


def start_obs_statistics(config: AlgorithmConfig, env: Env) -> normalization.ObsStatistics:
    """Return the statistics of no observations, None unless `normalize_observations`."""
    if not config.normalize_observations:
        return None
    return normalization.start_obs_statistics(env.observation_space)


def check_split(config: Any, env: Env, by_env: bool) -> None:
    """Raise unless a rollout splits evenly into `num_minibatches`.

    Args:
      config: a `AlgorithmConfig` with `num_minibatches`.
      by_env: minibatches hold whole sequences of some environments, not single transitions.
    """
    size, product = env.num_envs, f"num_envs = {env.num_envs}"
    if not by_env:
        size *= config.num_steps
        product = f"num_envs * num_steps = {env.num_envs} * {config.num_steps} = {size}"
    if size % config.num_minibatches:
        where = f" on each of {axis_of(env).size} devices" if axis_of(env).size > 1 else ""
        minibatches = f"{type(config).__name__}.num_minibatches = {config.num_minibatches}"
        raise ValueError(f"{product}{where} is not divisible by {minibatches}")
