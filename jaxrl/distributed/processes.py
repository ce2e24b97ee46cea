"""Several processes, on one machine or on many, that train one agent together.

Every process runs the same script. `connect` joins them before JAX's first computation; then
`jaxrl.distributed.spread.spread` takes the devices of all. They must do the same things in the same order, so
whatever depends on a clock or a signal is agreed on. The first process alone writes files, but for
checkpoints, of which each writes its part into the same directory.

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
    """Join the other processes. Before JAX's first computation.

    Args:
      coordinator: `address:port` of the first process, the same for all. None finds it, and the
        numbers below, from Slurm, Open MPI or Kubernetes, whichever started this process.
      num_processes: how many there are.
      process_id: which one this is, from 0.
      timeout_seconds: how long to wait for the others. If they do not come, the process ends with
        status 1 and one line on stderr: JAX, which waits in C++, would end it with a stack trace.

    Raises:
      ConnectionError: if no cluster is found.
      ValueError: for a coordinator without a port or the numbers.
    """
    if coordinator is not None and ":" not in coordinator:
        raise ValueError(f"the coordinator must be address:port, got {coordinator!r}")
    if coordinator is not None and (num_processes is None or process_id is None):
        raise ValueError(
            f"the coordinator {coordinator} needs the number of processes (--num-hosts) and which "
            "one this is (--host-id)"
        )
    this = (
        f"process {process_id} of {num_processes}" if coordinator else "a process of this cluster"
    )
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
            f"{this} could not be joined with others: {reason} Without Slurm, Open MPI or "
            "Kubernetes, name the coordinator, the number of processes and this one's"
        ) from error
    finally:
        timer.cancel()


def is_first() -> bool:
    """Whether this is the process that writes files."""
    return jax.process_index() == 0


def agree(tree: PyTree) -> PyTree:
    """The first process's arrays, on all of them; the others give some of the same shapes."""
    if jax.process_count() == 1:
        return tree

    def data(x: Any) -> Any:
        return jax.random.key_data(x) if is_key(x) else x

    def alike(x: Any, like: Any) -> Any:
        return jax.random.wrap_key_data(x) if is_key(like) else np.asarray(x, like.dtype)

    shared = multihost_utils.broadcast_one_to_all(jax.tree.map(data, tree))
    return jax.tree.map(alike, shared, tree)


def any_of(flag: bool) -> bool:
    """Whether any process has it set."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.bool_(flag)).any())


def on_first(function: Callable[[], None]) -> None:
    """Call a function on the first process alone.

    Raises:
      What it raises; on the other processes ValueError with its text, so that none waits for ever.
    """
    error: Exception | None = None
    if is_first():
        try:
            function()
        except Exception as raised:
            error = raised
    text = agree_on_text("" if error is None else str(error) or type(error).__name__)
    if error is not None:
        raise error
    if text:
        raise ValueError(text)


def agree_on_text(text: str) -> str:
    """The first process's text, on all of them."""
    if jax.process_count() == 1:
        return text
    coded = np.frombuffer(text.encode(), np.uint8)
    own = np.zeros(int(agree(np.int32(len(coded)))), np.uint8)
    return bytes(agree(coded if is_first() else own)).decode()


def check_shared(path: Path, seconds: float = 10.0) -> None:
    """Refuse a directory that processes do not share, by a file that the first one wrote there.

    Args:
      seconds: how long a network's file system may take to show it.

    Raises:
      ValueError: on all of them, if one does not see it.
    """
    if jax.process_count() == 1:
        return
    text = agree_on_text(path.read_text() if is_first() else "")
    deadline = time.monotonic() + seconds
    while not (seen := path.exists() and path.read_text() == text) and time.monotonic() < deadline:
        time.sleep(0.1)
    if any_of(not seen):
        raise ValueError(
            f"not all {jax.process_count()} processes see the same {path}, but each writes its "
            "part of checkpoints there; choose a directory on a file system that all machines share"
        )


def replicated_part(state: PyTree) -> PyTree:
    """What this process has of a state without asking others: the agent; None for the rest."""
    if jax.process_count() == 1:
        return state
    return jax.tree.map(lambda x: x.addressable_data(0) if x.is_fully_replicated else None, state)
