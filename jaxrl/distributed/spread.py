"""Several devices: the CPU as some of them, and one agent trained by all of them.

`spread` gives an algorithm whose environments, and all that belongs to them, lie on several
devices. Its state has the shapes of the algorithm's on one device, so drivers, populations and
checkpoints need not know.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxrl.device_axis import Axis, SpreadEnv
from jaxrl.envs.host.callback import HostState
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Algorithm, Array, Env, Metrics, PyTree

AXIS, LANE_AXIS = "devices", "lanes"


def split_cpu(num_devices: int | None = None) -> None:
    """Let JAX see the CPU as several devices, so that lanes of a population use all cores.

    Before JAX's first computation. Other devices, such as GPUs, stay as they are.

    Args:
      num_devices: None for one a core.
    """
    jax.config.update("jax_num_cpu_devices", num_devices or num_cores())


def num_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spread(algo: Algorithm, num_devices: int | None = None, num_lane_devices: int = 1) -> Algorithm:
    """`algo` with its environments spread over devices, trained as one agent.

    Each device steps an equal part of the environments, host environments from a pool of its own,
    and learns from what they show; gradients, advantages' and observations' statistics are
    averaged. The agent is the one that a single device would give, to float tolerance, where a
    batch is the same: PPO's minibatches are made of one of each device, and prioritized replay
    draws equal shares from all of them.

    Args:
      num_devices: of one agent; None for all there are, those of other processes included
        (`jaxrl.distributed.processes`).
      num_lane_devices: groups of so many devices, over which the lanes of a vmapped population are
        spread; together they make a mesh of `num_lane_devices x num_devices`.

    Raises:
      ValueError: if there are not so many devices, the environments cannot be spread evenly or
        are of a kind that cannot be spread, or the algorithm lacks `make`.
    """
    if num_lane_devices < 1:
        raise ValueError(f"num_lane_devices must be >= 1, got {num_lane_devices}")
    env, devices = algo.env, jax.devices()
    size = len(devices) // num_lane_devices if num_devices is None else num_devices
    if not 1 <= size * num_lane_devices <= len(devices):
        raise ValueError(
            f"asked for {num_lane_devices} x {size} devices, but JAX sees {len(devices)}: "
            f"{devices}; on a CPU, jaxrl.distributed.spread.split_cpu makes more"
        )
    if env.num_envs % size:
        raise ValueError(f"num_envs = {env.num_envs} is not divisible by {size} devices")
    if not isinstance(env, SpreadEnv):
        raise ValueError(
            f"{env.id} cannot be spread over devices: it lacks `spread(axis)`, which gives the "
            "part of the environments that one device steps (see jaxrl.device_axis.SpreadEnv)"
        )
    make = algo.make
    if make is None:
        raise ValueError(
            f"{algo.name!r} cannot be spread over devices: its `make`, which gives it on the "
            "environments of one device, is None"
        )
    part = make(env.spread(Axis(AXIS, size)), algo.network)
    used = np.array(devices[: num_lane_devices * size]).reshape(num_lane_devices, size)
    mesh = Mesh(used, (LANE_AXIS, AXIS))

    # Compiled functions remember their shapes.
    init_whole = jax.jit(algo.init)
    init_parts = jax.jit(jax.vmap(part.init, (None, None), axis_name=AXIS, axis_size=size))

    def specs(config: Any) -> PyTree:
        """How each leaf of a state lies on the devices."""
        key = jax.random.key(0)
        whole, parts = (jax.eval_shape(init, config, key) for init in (init_whole, init_parts))
        return jax.tree.map(_spec, whole, parts, is_leaf=lambda x: isinstance(x, HostState))

    def over_devices(function: Any, in_specs: PyTree, out_specs: PyTree) -> Any:
        return jax.shard_map(
            function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )

    same = PartitionSpec()

    def init(config: Any, key: Array, simulation: Simulation | None = None) -> Any:
        state_specs = specs(config)
        taken_over = None if simulation is None else state_specs.simulation
        return over_devices(part.init, (same, same, taken_over), state_specs)(
            config, key, simulation
        )

    def update(config: Any, state: Any) -> tuple[Any, Metrics]:
        state_specs = specs(config)
        return over_devices(part.update, (same, state_specs), (state_specs, same))(config, state)

    def again(env: Env, network: Any = None) -> Algorithm:
        return spread(make(env, network), size, num_lane_devices)

    return algo._replace(init=init, update=update, make=again, lane_axis=LANE_AXIS)


def _spec(whole: Any, parts: Any) -> Any:
    """The axis of a leaf that is shorter on each device than on one alone is the one to split."""
    if isinstance(whole, HostState):
        return PartitionSpec(AXIS)  # a pool each
    of_one = parts.shape[1:]
    split = [AXIS if n != m else None for n, m in zip(whole.shape, of_one, strict=True)]
    return PartitionSpec(*split) if any(split) else PartitionSpec()
