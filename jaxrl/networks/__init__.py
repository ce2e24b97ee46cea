"""Flax networks: torsos, recurrent cores and heads, and how a config describes them."""

from jaxrl.networks.build import (
    FeedForward,
    NetworkConfig,
    PolicyConfig,
    actor_critic,
    num_parameters,
    q_network,
)
from jaxrl.networks.heads import ActorCriticHead, QHead
from jaxrl.networks.recurrent import Recurrent

__all__ = [
    "ActorCriticHead",
    "FeedForward",
    "NetworkConfig",
    "PolicyConfig",
    "QHead",
    "Recurrent",
    "actor_critic",
    "num_parameters",
    "q_network",
]
