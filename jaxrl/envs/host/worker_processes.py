"""The worker processes of environments, as the trainer sees them.

Whatever a simulator does, the trainer waits for it no longer than `timeout`. If an environment
raises an exception, dies or does not answer, all processes are ended, with their descendants, and
one error says what happened and where.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import math
import multiprocessing
import os
import pickle
import select
import signal
import socket
import time
import warnings
from collections.abc import Callable, Iterable

import cloudpickle
import gymnasium

from jaxrl.envs.host import supervisor, worker
from jaxrl.envs.host.errors import SimulatorError
from jaxrl.envs.host.shared_memory import Memory

CLOSE_SECONDS = 5.0
"""Time that workers have to close their environments."""
KILL_SECONDS = 30.0
"""Time that the supervisor has to kill what is left, before it is killed itself."""
NOTICE_SECONDS = 2.0
"""Time within which the supervisor says how a worker ended."""


def read_spaces(make: Callable[[], gymnasium.Env], id: str, timeout: float) -> worker.Spaces:
    """Make an environment in a worker, and return its spaces.

    Raises:
      SimulatorError: if it cannot be made.
    """
    workers = Workers(make, 1, id, timeout)
    workers.close()
    try:
        return pickle.loads(workers.first_answers[0])
    except Exception as error:
        raise SimulatorError(f"{id}: its spaces cannot be sent to the trainer: {error}") from error


class Workers:
    """Worker processes of N environments, their supervisor and the connections to them.

    Args:
      make: makes an environment.
      id: names the environments in errors.
      timeout: seconds within which every environment must answer.
      spaces: what the environments must have; None to ask one for its spaces.
      memory: shared with the workers.

    Raises:
      SimulatorError: if an environment cannot be made; no process is left.
    """

    def __init__(
        self,
        make: Callable[[], gymnasium.Env],
        num_envs: int,
        id: str,
        timeout: float,
        spaces: worker.Spaces | None = None,
        memory: Memory | None = None,
    ):
        self._id, self._timeout = id, timeout
        self.pids: dict[int, int] = {}  # by slot
        self._channels: dict[int, socket.socket] = {}  # by slot
        self._polls: dict[int, select.poll] = {}  # by slot
        self._calls = ["make"] * num_envs  # what each worker does or did last
        self._exits: dict[int, int] = {}  # wait status, by slot
        self._silent: set[int] = set()  # slots that did not answer in time
        self._is_closed = False
        self._control, theirs = socket.socketpair()
        # A fork of this process would copy the locks of JAX's threads without the threads. The
        # supervisor is forked from a server instead, which imports once what all workers need.
        # multiprocessing runs the main script's module again there.
        multiprocessing.set_forkserver_preload(["__main__", "gymnasium", "jaxrl"])
        context = multiprocessing.get_context("forkserver")
        # The server has the variables of its start, and what `make` imports may read them.
        content = cloudpickle.dumps((dict(os.environ), cloudpickle.dumps((make, spaces))))
        # A daemon may not start processes, and some simulators do.
        self.process = context.Process(
            target=supervisor.supervise, args=(theirs, content, num_envs, memory), daemon=False
        )
        # Runs before multiprocessing's own exit handler, which waits for the supervisor.
        atexit.register(self._close_at_exit)
        try:
            with theirs:
                self.process.start()
            until = time.monotonic() + timeout
            while len(self._channels) < num_envs:
                self._hear(until)
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise SimulatorError(
                    f"{id}: no worker started within {timeout:g} s (`timeout`)"
                ) from error
            if not isinstance(error, EOFError | ConnectionError):
                raise
            raise SimulatorError(
                f"{id}: the worker processes could not be started; their error is above. Scripts "
                "whose environments run in processes are files with `if __name__ == '__main__':`; "
                "with vectorization_mode='sync' environments need no processes"
            ) from error
        try:
            self.first_answers = self.receive(range(num_envs))
        except BaseException:  # an interrupt, too
            self.close()
            raise

    def send(self, slot: int, command: bytes, seed: int = worker.NO_SEED) -> None:
        """Send a command; an error of the connection shows when its answer is received."""
        if self._is_closed:
            raise SimulatorError(f"{self._id}: its worker processes were closed")
        self._calls[slot] = worker.CALLS[command]
        with contextlib.suppress(OSError):
            self._channels[slot].sendall(worker.COMMAND.pack(command, seed))

    def receive(self, slots: Iterable[int]) -> list[bytes]:
        """Wait for one answer of each slot.

        Raises:
          SimulatorError: if an environment failed; all processes are ended.
        """
        until = time.monotonic() + self._timeout
        answers, failed, lost = [], {}, set()
        for slot in slots:
            try:
                kind, content = self._answer(slot, until)
            except TimeoutError:
                if until:
                    self._silent.add(slot)
                continue
            except (EOFError, SimulatorError):  # of the supervisor
                lost.add(slot)
            else:
                if kind == worker.DONE:
                    answers.append(content)
                    continue
                failed[slot] = content
            until = 0.0  # the others are not waited for
        if not failed and not lost and not self._silent:
            return answers
        raise self._fail(failed, lost)

    def _fail(self, failed: dict[int, bytes], lost: set[int]) -> SimulatorError:
        """End all processes, and return the error."""
        if failed:
            slot, content = next(iter(failed.items()))
            call, kind, summary, trace = json.loads(content)
            others = f" (and environments {[*failed][1:]})" if len(failed) > 1 else ""
            message = f"environment {slot} failed in {call}{others}:\n{trace}"
            error = SimulatorError(f"{self._id}: {message}", kind, summary)
        elif lost:
            ends = self._describe_ends(lost)
            call = self._calls[min(self._exits or lost)]  # of others no answer was waited for
            where = "before it was made" if call == "make" else f"in {call}"
            error = SimulatorError(f"{self._id}: the process of environment {ends} ended {where}")
        else:
            call = " and ".join(sorted({self._calls[slot] for slot in self._silent}))
            error = SimulatorError(
                f"{self._id}: no answer to {call} from environments {sorted(self._silent)} within "
                f"{self._timeout:g} s (`timeout`)"
            )
        self.close()
        return error

    def _describe_ends(self, lost: set[int]) -> str:
        """Say how workers ended, which the supervisor reports."""
        until = time.monotonic() + NOTICE_SECONDS
        with contextlib.suppress(EOFError, TimeoutError, SimulatorError):
            while not self._exits:
                self._hear(until)
            while True:  # what ended one may have ended others
                self._hear(min(until, time.monotonic() + 0.1))
        ends = {slot: _describe_exit(status) for slot, status in sorted(self._exits.items())}
        ends = ends or dict.fromkeys(sorted(lost), "its connection is closed")
        return ", ".join(f"{slot} ({end})" for slot, end in ends.items())

    def _answer(self, slot: int, until: float) -> tuple[bytes, bytes]:
        """Wait for an answer of a worker.

        Raises:
          TimeoutError: at time `until`.
          EOFError: if a worker has ended.
        """
        kind, size = worker.ANSWER.unpack(self._read(slot, worker.ANSWER.size, until))
        return kind, self._read(slot, size, until) if size else b""

    def _read(self, slot: int, size: int, until: float) -> bytes:
        content = bytearray()
        while len(content) < size:
            try:
                part = self._channels[slot].recv(size - len(content))
            except BlockingIOError:
                self._wait(slot, until)
                continue
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError
            content += part
        return bytes(content)

    def _wait(self, slot: int, until: float) -> None:
        """Wait until a worker sends something, or some worker has ended."""
        if slot in self._exits or (self._exits and not self._is_closed):
            raise EOFError
        ready = self._polls[slot].poll(_milliseconds(until))
        if self._channels[slot].fileno() in dict(ready):
            return
        if ready:
            self._hear(until)
        elif time.monotonic() >= until:
            raise TimeoutError

    def _hear(self, until: float) -> None:
        """Wait for a message of the supervisor and note it."""
        control = self._control
        control.settimeout(max(min(until - time.monotonic(), 3600.0), 0.001))
        notice, descriptors, _, _ = socket.recv_fds(control, supervisor.NOTICE.size, 1)
        if len(notice) < supervisor.NOTICE.size:
            raise EOFError
        kind, number, value = supervisor.NOTICE.unpack(notice)
        if kind == supervisor.ENDED:
            self._exits[number] = value
        elif kind == supervisor.FAILED:
            text = control.recv(value, socket.MSG_WAITALL).decode(errors="replace")
            raise SimulatorError(f"{self._id}: workers could not be started:\n{text}")
        elif not descriptors:
            raise OSError(
                errno.EMFILE,
                f"{self._id}: too many open files; each environment needs one. Allow more by "
                "`ulimit -n`, or use fewer environments",
            )
        else:
            self.pids[number] = value
            channel = self._channels[number] = socket.socket(fileno=descriptors[0])
            channel.setblocking(False)
            poll = self._polls[number] = select.poll()
            poll.register(channel, select.POLLIN)
            poll.register(control, select.POLLIN)

    def close(self) -> str:
        """Let workers close their environments, and kill what is left of them.

        Returns:
          What went wrong; empty if nothing did.
        """
        if self._is_closed:
            return ""
        atexit.unregister(self._close_at_exit)
        waited = [slot for slot in self._channels if slot not in self._silent | self._exits.keys()]
        for slot in waited:
            self.send(slot, worker.CLOSE)
        self._is_closed = True
        until = time.monotonic() + CLOSE_SECONDS
        problems = [problem for slot in waited if (problem := self._await_end(slot, until))]
        self._control.close()
        if self.process.pid is not None:
            self.process.join(KILL_SECONDS)
            if self.process.exitcode != 0:  # it killed nothing
                self.process.kill()
                self.process.join(KILL_SECONDS)
                supervisor.kill_groups(self.pids.values())
        for channel in self._channels.values():
            channel.close()
        return "\n".join(f"{self._id}: {problem}" for problem in problems)

    def _close_at_exit(self) -> None:
        if problems := self.close():
            warnings.warn(problems, RuntimeWarning, stacklevel=1)

    def _await_end(self, slot: int, until: float) -> str | None:
        """Wait until a worker has closed its environment and ended; return what went wrong."""
        problem = None
        try:
            while (answer := self._answer(slot, until))[0] != worker.CLOSED:
                if answer[0] == worker.FAILED:
                    call, *_, trace = json.loads(answer[1])  # maybe of a step before
                    problem = f"environment {slot} failed in {call}:\n{trace}"
            while slot not in self._exits:
                self._hear(until)
        except TimeoutError:
            problem = f"environment {slot} did not close within {CLOSE_SECONDS:g} s and was killed"
        except (EOFError, OSError, ValueError, SimulatorError):
            pass  # the supervisor kills it
        return problem


def _milliseconds(until: float) -> int:
    return math.ceil(1e3 * min(max(until - time.monotonic(), 0.0), 3600.0))


def _describe_exit(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
