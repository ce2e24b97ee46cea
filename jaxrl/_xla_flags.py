"""XLA flags that must be set before JAX starts its backend; imported first by `jaxrl`.

jax 0.10 on CPU (what Python 3.11 resolves to) intermittently hangs for ever in vmapped training
programs on one or two cores, every thread asleep, unless its concurrency-optimized scheduler is
off. jax 0.11 does not. A value that the user has set is never overridden.
"""

from __future__ import annotations

import os

import jax

_FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler"


def avoid_cpu_hang() -> None:
    """Turn the scheduler off where it hangs."""
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.__version_info__ < (0, 11) and _FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_FLAG}=false".strip()


avoid_cpu_hang()
