"""Begin a run from a trained agent: what the new training state takes over."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.training.policy import LoadedPolicy
from jaxrl.training.run_dir import first_agent
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.types import Array, PyTree

FIELDS = ("params", "target_params", "obs_statistics")
"""The fields of a training state that a new run takes over from a trained agent."""


class Learned(NamedTuple):
    """The learned part of an agent's training state, without its replay and environments."""

    fields: dict[str, PyTree]
    """Its `FIELDS`, those that the new training state has."""
    reward_statistics: PyTree
    """Of its scale of rewards; None if either state has none."""
    origin: dict[str, Any]
    """`LoadedPolicy.origin`"""


def learned_by(policy: LoadedPolicy, like: Any) -> Learned:
    """Return what a new training state takes over from an agent.

    Args:
      like: the `eval_shape` of the new state.

    Raises:
      ValueError: if the agent's arrays have other shapes, or the state no field `params`.
    """
    agent: Any = policy.state
    fields = {name: getattr(agent, name) for name in FIELDS if hasattr(like, name)}
    if "params" not in fields:
        raise ValueError(
            f"init_from takes over {', '.join(FIELDS)}, but the state of {policy.algo.name} has no "
            "params; let its `init` begin with what an agent has learned"
        )
    for name, given in fields.items():
        found, needed = _shapes(given), _shapes(getattr(like, name))
        for place in sorted({*found, *needed}):
            if found.get(place) != needed.get(place):
                raise ValueError(
                    f"init_from must be an agent with the run's network, spaces and "
                    f"normalize_observations: its {name}{place} has the shape {found.get(place)}, "
                    f"the run needs {needed.get(place)}"
                )
    scale = getattr(agent, "reward_scale", None)
    is_scaled = scale is not None and like.reward_scale is not None
    return Learned(fields, scale.statistics if is_scaled else None, policy.origin)


def check_agent(run_dir: Path, learned: Learned | None) -> None:
    """Raise `ValueError` if a run that begins anew began from another agent than the given one."""
    began = manifests.read(run_dir).get("init_from")
    given = None if learned is None else learned.origin
    if first_agent.is_other_agent(began, given):
        raise first_agent.lacks_agent(began, f"the run in {run_dir}")


def begin_from(state: Any, learned: Learned) -> Any:
    """Return a new training state with what an agent has learned.

    IMPALA's `past_params` all become the agent's parameters. The optimizer, the replay, the
    environments and the number of updates stay new.
    """

    def place(x: Any, like: Array) -> Array:  # a copy, since a run gives the state's arrays away
        return jax.device_put(jnp.array(x, like.dtype), like.sharding)

    taken = {
        name: jax.tree.map(place, x, getattr(state, name)) for name, x in learned.fields.items()
    }
    if getattr(state, "past_params", None) is not None:
        taken["past_params"] = jax.tree.map(
            lambda past, x: place(jnp.broadcast_to(x, past.shape), past),
            state.past_params, learned.fields["params"],
        )  # fmt: skip
    if learned.reward_statistics is not None:
        scale = state.reward_scale
        statistics = jax.tree.map(place, learned.reward_statistics, scale.statistics)
        taken["reward_scale"] = scale._replace(statistics=statistics)
    return state._replace(**taken)


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a tree's arrays by their places."""
    return {jax.tree_util.keystr(p): x.shape for p, x in jax.tree_util.tree_leaves_with_path(tree)}
