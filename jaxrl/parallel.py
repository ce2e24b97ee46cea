"""Several devices in one process."""

from __future__ import annotations

import os

import jax


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
