"""The process between the trainer and its workers: it starts them, and ends all that they leave.

The supervisor runs no simulator, so that it answers whatever a simulator does. It reports each
worker that ends. When its connection to the trainer closes, because the trainer closed it or ended
in any way, the supervisor kills the workers and all their descendants, and exits. On Linux it
adopts the descendants whose parents have died, so that it finds all of them; elsewhere it finds
those that stayed in a worker's process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing.connection
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxrl.envs.host import worker
from jaxrl.envs.host.errors import describe

NOTICE = struct.Struct("<cqq")
"""A message to the trainer: its kind, and two numbers."""
STARTED, ENDED, FAILED = b"s", b"e", b"!"
"""A worker's slot and process id, with its connection; a slot and wait status; 0 and the length of
the text that follows."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HANDLED = (signal.SIGINT, signal.SIGTERM)
"""Signals that terminals and clusters send to all processes; the trainer decides."""


def supervise(control: socket.socket, make: bytes, num_envs: int, memory: Any) -> None:
    """Start the workers and wait until the trainer closes `control`; then kill what is left.

    The function also returns in each worker, when that has done its work.

    Args:
      make: see `worker.work`.
      memory: see `worker.work`.
    """
    os.setsid()  # signals of the terminal reach the trainer only
    _handle_signals(signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    supervisor, slots = os.getpid(), dict[int, int]()
    try:
        for slot in range(num_envs):
            theirs, ours = socket.socketpair()
            with theirs, ours:
                if (pid := os.fork()) == 0:
                    _become_worker(supervisor, control, theirs)
                    worker.work(ours, slot, make, memory)
                    return
                slots[pid] = slot
                socket.send_fds(control, [NOTICE.pack(STARTED, slot, pid)], [theirs.fileno()])
        while control not in multiprocessing.connection.wait([control, woken]):
            os.read(woken, 4096)
            for pid, status in _reap():
                if pid in slots:
                    control.sendall(NOTICE.pack(ENDED, slots[pid], status))
    except Exception as error:
        if os.getpid() != supervisor:
            raise
        with contextlib.suppress(OSError):
            text = describe(error).encode()
            control.sendall(NOTICE.pack(FAILED, 0, len(text)) + text)
    finally:
        if os.getpid() == supervisor:
            _kill_all(slots)


def _become_worker(supervisor: int, control: socket.socket, theirs: socket.socket) -> None:
    """Leave the supervisor's connections and signals behind, and end when it ends."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A simulator can end what it starts: programs inherit no handlers, and forks lose this one.
    _handle_signals(lambda *_: None)

    def begin_fork() -> None:
        _handle_signals(signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED),
        after_in_child=begin_fork,
    )
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)
    os.setpgid(0, 0)
    control.close()
    theirs.close()


def _handle_signals(handler: Any) -> None:
    """Set the handler of the signals `HANDLED`."""
    for number in HANDLED:
        signal.signal(number, handler)
        signal.siginterrupt(number, False)


def _prctl(option: int, value: int) -> None:
    """Set an attribute of this process, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _reap() -> list[tuple[int, int]]:
    """Return process id and wait status of the children that have ended."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(child)
    return ended


def _kill_all(groups: Iterable[int]) -> None:
    """Kill all descendants of this process and the members of process groups."""
    while True:
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if sys.platform != "linux":
            kill_groups(groups)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def kill_groups(groups: Iterable[int]) -> None:
    """Kill the members of process groups that still exist."""
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def _descendants(ancestor: int) -> set[int]:
    """Return the process ids of children, their children, and so on; on Linux."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name of the program, in parentheses, may contain anything.
            parent = path.read_bytes().rpartition(b")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(path.parent.name))
    found: set[int] = set()
    unseen = [ancestor]
    while unseen:
        new = [pid for pid in children.get(unseen.pop(), []) if pid not in found]
        found.update(new)
        unseen.extend(new)
    return found
