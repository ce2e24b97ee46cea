"""Processes, on one machine or on many, that train one agent together.

Every process runs the same script. `connect` joins them before JAX's first computation; then
`jaxrl.distributed.spread.spread` uses the devices of all. The processes must do the same things in
the same order, so they agree on everything that depends on a clock or a signal. Only the first
process writes files, except for checkpoints: each process writes its part of them into the same
directory.

With one process, every function here does nothing. `Interrupt` tells a process of signals.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxrl.distributed.liveness import Liveness
from jaxrl.types import PyTree, is_key

NAMED_AFTER_SECONDS = 20.0
"""A process that waits so long for the others says for whom, and whether it can reach them."""
SAME_REQUEST_SECONDS = 1.0
"""Signals within this time are one request: a cluster may signal a job's shell and its children at
once, and the shell passes the signal on to them."""
_liveness: Liveness | None = None


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
      ConnectionError: if no cluster is found, or the first process cannot be reached.
      ValueError: for a coordinator without a port or the numbers.
    """
    if coordinator is not None:
        port = re.fullmatch(r".+:([0-9]{1,5})", coordinator)
        if port is None or int(port[1]) > 65535:
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

    def name_address() -> None:
        known = _joined().coordinator_address or coordinator
        reason = explain_unreachable(known) if known else ""
        state = reason or ", which answers, so some of them are missing"
        print(
            f"{this} has waited {NAMED_AFTER_SECONDS:g} s for the others at {known or address}"
            f"{state}; it waits up to {timeout_seconds} s",
            file=sys.stderr,
            flush=True,
        )

    timers = [
        threading.Timer(timeout_seconds, give_up),
        threading.Timer(NAMED_AFTER_SECONDS, name_address),
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            # For Slurm and Open MPI, JAX's default is one GPU a process. An empty list means all.
            local_device_ids=[] if is_only_process_of_machine(os.environ) else None,
            initialization_timeout=timeout_seconds + 60,
        )
    except (RuntimeError, ValueError, KeyError) as error:
        reason = f"{error} is not set." if isinstance(error, KeyError) else error
        raise ConnectionError(
            f"{this} could not join the others: {reason} Without Slurm, Open MPI or Kubernetes, "
            "name the coordinator (--coordinator), the number of processes (--num-hosts) and the "
            "number of this one (--host-id)"
        ) from error
    finally:
        for timer in timers:
            timer.cancel()
    watch_others()


def _joined() -> Any:
    """Return JAX's address and store of keys, which have no public name."""
    from jax._src import distributed

    return distributed.global_state


def watch_others() -> None:
    """End this process with one line if another one dies, or fails with an error."""
    joined = _joined()
    if joined.client is None or joined.num_processes == 1:
        return
    host = str(joined.coordinator_address).rpartition(":")[0].strip("[]")
    global _liveness
    _liveness = Liveness(joined.client, host, joined.process_id)
    show = sys.excepthook

    def fail_and_show(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        fail_together()
        show(kind, error, trace)

    sys.excepthook = fail_and_show


def fail_together() -> None:
    """Tell the other processes, if any, that an error ends this one; they end, too."""
    if _liveness is not None:
        _liveness.fail()


@contextlib.contextmanager
def failing_together(*kinds: type[BaseException]) -> Iterator[None]:
    """Let errors of these kinds in the block end the other processes too, which may not have them.

    Without it they would wait for this process. Other errors are the same on all processes.
    """
    try:
        yield
    except kinds:
        fail_together()
        raise


def explain_unreachable(address: str) -> str:
    """Return why nothing at `address:port` answers; nothing if something does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=3).close()
    except (OSError, ValueError) as error:
        return f", which cannot be reached: {error}"
    return ""


def is_only_process_of_machine(environment: Mapping[str, str]) -> bool:
    """Return whether Slurm or Open MPI started one process on each machine."""
    if "OMPI_COMM_WORLD_LOCAL_SIZE" in environment:  # also of mpirun in a job of Slurm, as for JAX
        return environment["OMPI_COMM_WORLD_LOCAL_SIZE"] == "1"
    tasks = environment.get("SLURM_NTASKS")
    return tasks is not None and tasks == environment.get("SLURM_STEP_NUM_NODES")


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
        if is_key(like):
            return jax.random.wrap_key_data(x, impl=jax.random.key_impl(like))
        return np.asarray(x, like.dtype)

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


def check_spread(name: str, state: PyTree) -> None:
    """Raise `ValueError` if the state of the algorithm `name` lies on one of several processes."""
    if jax.process_count() > 1 and all(x.is_fully_addressable for x in jax.tree.leaves(state)):
        raise ValueError(
            f"{jax.process_count()} processes are joined, but {name!r} trains on the devices of "
            "one; spread it over the devices of all by jaxrl.distributed.spread.spread"
        )


class Interrupt:
    """A context in which the first SIGINT or SIGTERM sets `requested` and does nothing else.

    A later one does what it would do without this context. Python allows handlers in the main
    thread only; in other threads signals do what they always do.
    """

    def __init__(self) -> None:
        self.requested, self._requested_at = False, -math.inf
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            signals = (signal.SIGINT, signal.SIGTERM)
            self._previous = {s: signal.signal(s, self._request) for s in signals}
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.requested:
            self.requested, self._requested_at = True, now
        elif now - self._requested_at > SAME_REQUEST_SECONDS:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for s, handler in self._previous.items():
            signal.signal(s, handler)

    def __exit__(self, *exception: object) -> None:
        self._restore()
