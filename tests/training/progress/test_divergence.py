"""Losses and parameters that are not finite end a run, and no checkpoint has them."""

from typing import Any

import jax.numpy as jnp
import pytest
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.files import intact
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.checkpoint import Checkpoints

CONFIG = ToyConfig()
QUIET: dict[str, Any] = {"num_evaluations": 0, "chunk_updates": 2, "progress_bar": False}


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_checkpoints(tmp_path):
    algo = toy()

    def update(config, state):
        state, metrics = algo.update(config, state)
        return state, metrics | {"loss": jnp.where(state.num_updates > 4, jnp.nan, 1.0)}

    with pytest.raises(FloatingPointError, match="loss is nan in update 5 of toy on gymnax/"):
        jaxrl.run(
            algo._replace(update=update), CONFIG, total_steps=10 * 4, run_dir=tmp_path,
            checkpoint_seconds=0.0, log_every=8, **QUIET,
        )  # fmt: skip
    identity = manifests.identity(manifests.read(tmp_path))
    checkpoints = Checkpoints(tmp_path / "checkpoints", identity)
    assert checkpoints.latest() == 4
    checkpoints.close()


def test_parameters_that_are_not_finite_are_not_saved(tmp_path):
    algo = toy()

    def update(config, state):
        state, metrics = algo.update(config, state)  # whose loss is finite
        return state._replace(params=state.params / (state.num_updates < 5)), metrics

    for run_dir in (tmp_path, None):
        with pytest.raises(FloatingPointError, match=r"parameters of toy .* after update \d+;"):
            jaxrl.run(
                algo._replace(update=update), CONFIG, total_steps=10 * 4, run_dir=run_dir,
                checkpoint_seconds=0.0, **QUIET,
            )  # fmt: skip
    assert intact.numbers(tmp_path / "checkpoints") == [4, 2]
