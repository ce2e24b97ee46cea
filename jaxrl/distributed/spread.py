"""One agent trained on several devices, and the CPU as several devices.

`spread` gives an algorithm whose environments, with everything that belongs to them, lie on several
devices. Its state has the shapes that it would have on one device, so loops, populations and
checkpoints are the same.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxrl import checks
from jaxrl.device_axis import Axis, SpreadEnv
from jaxrl.envs.host.callback import HostState
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Algorithm, Array, Env, Metrics, PyTree, remake

DEVICE_AXIS, LANE_AXIS = "devices", "lanes"
"""Axes of the mesh: devices of one agent, and lanes of a population."""


def split_cpu(num_devices: int | None = None) -> None:
    """Let JAX see the CPU as several devices, so that lanes of a population use all cores.

    Call it before `jaxrl.make` and before JAX's first computation. Other devices, such as GPUs,
    stay as they are.

    Args:
      num_devices: None for one a core.
    """
    num_devices = checks.optional(checks.integer, "num_devices", num_devices)
    jax.config.update("jax_num_cpu_devices", num_devices or num_cores())


def describe_unused(num_used: int, remedy: str) -> str | None:
    """Return a line on accelerators of this process that are unused; None if all are used.

    Args:
      num_used: devices of this process that are used.
      remedy: how to use more.
    """
    seen = [device for device in jax.local_devices() if device.platform != "cpu"]
    if len(seen) <= num_used:
        return None
    return f"uses {num_used} of {len(seen)} {seen[0].platform} devices; {remedy}"


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spread(algo: Algorithm, num_devices: int | None = None, num_lane_devices: int = 1) -> Algorithm:
    """Spread the environments of one agent over devices.

    Each device steps an equal part of the environments, host environments from a pool of its own,
    and learns from that part. Gradients and the statistics of advantages and observations are
    averaged over the devices. The agent is the one that a single device would train, to float
    tolerance, as long as a batch has the same samples. With several minibatches it has others: PPO
    and PQN shuffle each device's transitions apart, and a minibatch of A2C and IMPALA takes
    environments of all devices. Prioritized replay draws an equal share from each device.

    Args:
      algo: the algorithm on all environments.
      num_devices: devices of one agent; None for all, also of other processes
        (`jaxrl.distributed.processes`).
      num_lane_devices: groups of `num_devices` devices, over which the lanes of a vmapped
        population are spread. The mesh is `num_lane_devices x num_devices`.

    Raises:
      ValueError: if there are too few devices, the environments cannot be spread evenly or not at
        all, or the algorithm lacks `make` or has other functions than it makes.
    """
    checks.instance("algo", algo, Algorithm, "an algorithm, such as jaxrl.ppo(env)")
    num_devices = checks.optional(checks.integer, "num_devices", num_devices)
    num_lane_devices = checks.integer("num_lane_devices", num_lane_devices)
    env, devices = algo.env, jax.devices()
    size = len(devices) // num_lane_devices if num_devices is None else num_devices
    if not 1 <= size * num_lane_devices <= len(devices):
        raise ValueError(
            f"asked for {num_lane_devices} x {size} devices, but JAX sees {len(devices)}: "
            f"{devices}; on a CPU, jaxrl.distributed.spread.split_cpu makes more"
        )
    make = _check_can_be_spread(algo, size)
    local = remake(algo, env.spread(Axis(DEVICE_AXIS, size)))
    used = np.array(devices[: num_lane_devices * size]).reshape(num_lane_devices, size)
    mesh = Mesh(used, (LANE_AXIS, DEVICE_AXIS))

    # Compiled functions remember their shapes.
    init_whole = jax.jit(algo.init)
    init_local = jax.jit(jax.vmap(local.init, (None, None), axis_name=DEVICE_AXIS, axis_size=size))
    same = PartitionSpec()

    def layout(config: Any) -> PyTree:
        """Return how the devices share each leaf of a state."""
        key = jax.random.key(0)
        whole, parts = (jax.eval_shape(init, config, key) for init in (init_whole, init_local))
        return jax.tree.map(_spec, whole, parts, is_leaf=lambda x: isinstance(x, HostState))

    def over_devices(function: Any, in_specs: PyTree, out_specs: PyTree) -> Any:
        return jax.shard_map(
            function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )

    def init(config: Any, key: Array, simulation: Simulation | None = None) -> Any:
        state = layout(config)
        taken_over = None if simulation is None else state.simulation
        return over_devices(local.init, (same, same, taken_over), state)(config, key, simulation)

    def update(config: Any, state: Any) -> tuple[Any, Metrics]:
        specs = layout(config)
        return over_devices(local.update, (same, specs), (specs, same))(config, state)

    def make_spread(env: Env, network: Any = None) -> Algorithm:
        return spread(make(env, network), size, num_lane_devices)

    return algo._replace(
        init=init, update=update, make=make_spread, lane_axis=LANE_AXIS, num_devices=used.size
    )


def _check_can_be_spread(algo: Algorithm, num_devices: int) -> Any:
    """Return `algo.make`; raise if the algorithm or its environments cannot be spread."""
    env = algo.env
    if env.num_envs % num_devices:
        raise ValueError(f"num_envs = {env.num_envs} is not divisible by {num_devices} devices")
    if not isinstance(env, SpreadEnv):
        raise ValueError(
            f"{env.id} cannot be spread over devices: it lacks `spread(axis)`, which gives the "
            "part of the environments that one device steps (see jaxrl.device_axis.SpreadEnv)"
        )
    if algo.make is None:
        raise ValueError(
            f"{algo.name!r} cannot be spread over devices: its `make`, which makes it for the "
            "environments of one device, is None"
        )
    return algo.make


def _spec(whole: Any, parts: Any) -> Any:
    """Return the spec of a leaf: split along the axis that is shorter on one device of several.

    Args:
      whole: the leaf's shape on a single device.
      parts: its shapes on several, `[num_devices, ...]`.
    """
    if isinstance(whole, HostState):
        return PartitionSpec(DEVICE_AXIS)  # each device has its own pool
    split = [
        DEVICE_AXIS if n != m else None for n, m in zip(whole.shape, parts.shape[1:], strict=True)
    ]
    return PartitionSpec(*split) if any(split) else PartitionSpec()
