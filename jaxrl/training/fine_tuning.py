"""Begin a run from a trained agent: what the new training state takes over."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.training.policy import LoadedPolicy
from jaxrl.types import Array, PyTree

LEARNED = ("params", "target_params", "obs_statistics")
"""The fields of a training state that a new run takes over from a trained agent."""


def begin_from(state: Any, policy: LoadedPolicy) -> Any:
    """Return a new training state with what a trained agent has learned.

    These are the `LEARNED` fields, IMPALA's earlier parameters, and the scale of rewards if both
    have one. The optimizer, the replay and the environments stay new.

    Raises:
      ValueError: see `learned_by`.
    """

    def place(x: Any, like: Array) -> Array:  # a copy, since a run gives the state's arrays away
        return jax.device_put(jnp.array(x, like.dtype), like.sharding)

    learned = learned_by(policy, state)
    return state._replace(
        **{name: jax.tree.map(place, x, getattr(state, name)) for name, x in learned.items()}
    )


def learned_by(policy: LoadedPolicy, like: Any) -> dict[str, PyTree]:
    """Return the fields that a new training state takes over from a trained agent.

    Args:
      like: a state, or its `eval_shape`.

    Raises:
      ValueError: if the agent's arrays have other shapes.
    """
    agent: Any = policy.state
    learned = {name: getattr(agent, name) for name in LEARNED if hasattr(like, name)}
    if hasattr(like, "past_params"):
        learned["past_params"] = jax.tree.map(
            lambda past, x: jnp.broadcast_to(x, past.shape), like.past_params, agent.params
        )
    scale: Any = getattr(like, "reward_scale", None)
    if scale is not None and agent.reward_scale is not None:
        learned["reward_scale"] = scale._replace(statistics=agent.reward_scale.statistics)
    for name, given in learned.items():
        found, needed = _shapes(given), _shapes(getattr(like, name))
        for place in sorted({*found, *needed}):
            if found.get(place) != needed.get(place):
                raise ValueError(
                    f"init_from: the agent's {name}{place} has the shape {found.get(place)}, the "
                    f"run needs {needed.get(place)}: network, spaces and normalize_observations "
                    "must be the same"
                )
    return learned


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a tree's arrays by their places."""
    return {jax.tree_util.keystr(p): x.shape for p, x in jax.tree_util.tree_leaves_with_path(tree)}
