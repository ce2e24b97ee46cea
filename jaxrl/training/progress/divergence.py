"""Errors for losses and parameters that are not finite."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import Array, PyTree

REMEDY = "a lower learning rate or gradient norm may help. Checkpoints before it are kept"


@jax.jit
def are_finite(params: PyTree) -> Array:
    """Return whether all numbers are finite."""
    return jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(params)] or [True]).all()


def check_losses(metrics: dict[str, np.ndarray], update: int, agent: str) -> None:
    """Raise `FloatingPointError` if a loss of the updates after `update` is not finite.

    Args:
      metrics: of these updates, `[updates]`.
      agent: its algorithm and environment, for the error.
    """
    losses = metrics.get("loss", np.zeros(1))
    finite = np.isfinite(losses)
    if not finite.all():
        first = int(finite.argmin())
        raise FloatingPointError(
            f"the loss is {losses[first]} in update {update + first + 1} of {agent}; {REMEDY}"
        )


def check_parameters(state: Any, update: int, agent: str) -> None:
    """Raise `FloatingPointError` if a parameter is not finite, which the last loss may miss.

    Args:
      state: the training state after `update`.
      agent: its algorithm and environment, for the error.
    """
    if not are_finite(getattr(state, "params", None)):
        raise FloatingPointError(
            f"parameters of {agent} are not finite after update {update}; {REMEDY}"
        )
