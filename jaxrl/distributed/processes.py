"""Processes, on one machine or on many, that train one agent together.

Every process runs the same script. `connect` joins them before JAX's first computation; then
`jaxrl.distributed.spread.spread` uses the devices of all. The processes must do the same things in
the same order, so they agree on everything that depends on a clock or a signal. Only the first
process writes files, except for checkpoints: each process writes its part of them into the same
directory.

With one process, every function here does nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxrl.types import PyTree, is_key


def connect(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout_seconds: int = 300,
) -> None:
    """Join the other processes. Call it before JAX's first computation.

    Args:
      coordinator: `address:port` of the first process, the same for all processes. None reads it,
        and the numbers below, from Slurm, Open MPI or Kubernetes, whichever started this process.
      num_processes: number of all processes.
      process_id: number of this process, from 0.
      timeout_seconds: seconds to wait for the others. If they do not come, the process ends with
        status 1 and one line on stderr: JAX, which waits in C++, would end it with a stack trace.

    Raises:
      ConnectionError: if no cluster is found.
      ValueError: for a coordinator without a port or the numbers.
    """
    if coordinator is not None and ":" not in coordinator:
        raise ValueError(f"the coordinator must be address:port, got {coordinator!r}")
    if coordinator is not None and (num_processes is None or process_id is None):
        raise ValueError(
            f"the coordinator {coordinator} needs the number of processes (--num-hosts) and the "
            "number of this one (--host-id)"
        )
    this = f"process {process_id} of {num_processes}" if coordinator else "this process"
    address = coordinator or "the coordinator"

    def give_up() -> None:
        print(
            f"error: {this} waited {timeout_seconds} s for the others at {address}; are all "
            "running, with the same address and number of processes, and can they reach it?",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    timer = threading.Timer(timeout_seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            coordinator, num_processes, process_id, initialization_timeout=timeout_seconds + 60
        )
    except (RuntimeError, ValueError, KeyError) as error:
        reason = f"{error} is not set." if isinstance(error, KeyError) else error
        raise ConnectionError(
            f"{this} could not join the others: {reason} Without Slurm, Open MPI or Kubernetes, "
            "name the coordinator (--coordinator), the number of processes (--num-hosts) and the "
            "number of this one (--host-id)"
        ) from error
    finally:
        timer.cancel()


def is_first() -> bool:
    """Return whether this is the process that writes files."""
    return jax.process_index() == 0


def broadcast(tree: PyTree) -> PyTree:
    """Return the first process's arrays on every process.

    Args:
      tree: arrays or typed keys, of the same shapes on all processes.
    """
    if jax.process_count() == 1:
        return tree

    def data(x: Any) -> Any:
        return jax.random.key_data(x) if is_key(x) else x

    def restore(x: Any, like: Any) -> Any:
        return jax.random.wrap_key_data(x) if is_key(like) else np.asarray(x, like.dtype)

    shared = multihost_utils.broadcast_one_to_all(jax.tree.map(data, tree))
    return jax.tree.map(restore, shared, tree)


def broadcast_text(text: str) -> str:
    """Return the first process's text on every process."""
    if jax.process_count() == 1:
        return text
    encoded = np.frombuffer(text.encode(), np.uint8)
    length = int(broadcast(np.int32(len(encoded))))
    return bytes(broadcast(encoded if is_first() else np.zeros(length, np.uint8))).decode()


def any_process(flag: bool) -> bool:
    """Return whether the flag is true on any process."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.bool_(flag)).any())


def call_on_first(function: Callable[[], None]) -> None:
    """Call a function on the first process only; an error ends the call on all processes.

    Raises:
      Exception: the function's own, on the first process.
      ValueError: with the text of that error, on the others, so that they do not wait for ever.
    """
    error: Exception | None = None
    if is_first():
        try:
            function()
        except Exception as raised:
            error = raised
    text = broadcast_text("" if error is None else str(error) or type(error).__name__)
    if error is not None:
        raise error
    if text:
        raise ValueError(text)


def check_shared_file(path: Path, seconds: float = 10.0) -> None:
    """Raise unless every process sees a file as the first process wrote it.

    Args:
      path: the file; its directory is the one that the processes must share.
      seconds: time that a network's file system may take to show the file.

    Raises:
      ValueError: on all processes, if one of them does not see the file.
    """
    if jax.process_count() == 1:
        return
    text = broadcast_text(path.read_text() if is_first() else "")
    deadline = time.monotonic() + seconds
    while not (seen := path.exists() and path.read_text() == text) and time.monotonic() < deadline:
        time.sleep(0.1)
    if any_process(not seen):
        raise ValueError(
            f"not all {jax.process_count()} processes see the same {path}, but each writes its "
            "part of checkpoints there; choose a directory on a file system that all machines share"
        )


def replicated_part(state: PyTree) -> PyTree:
    """Return the leaves that every process has whole (the agent), with None for all others."""
    if jax.process_count() == 1:
        return state
    return jax.tree.map(lambda x: x.addressable_data(0) if x.is_fully_replicated else None, state)
