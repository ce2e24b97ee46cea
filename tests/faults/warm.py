"""A warm process: it serves the calls of many cases, so that JAX starts and compiles once."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fast_compile import TWO_DEVICES

from faults import jobs
from faults.jobs import Ended, Job
from faults.outcomes import Damage, Verdict

LIMIT = 10.0
"""Seconds of this machine's processor that a call may take."""
PATIENCE = 60.0
"""Seconds after which a call counts as hung. The machine may have other work."""
CALLS = 400
"""Calls of one process: its memory grows with the programs that it compiles."""


class WarmProcess:
    """A job that answers calls one after another; a new one begins after it hung or died."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._pipe: Connection | None = None
        self._calls = self._seen = 0

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float = PATIENCE,
        limit: float = LIMIT,
    ) -> Ended:
        """Return how a call ended; raise `Damage` if it does not end in time.

        Args:
          seconds, limit: as `PATIENCE` and `LIMIT`.
        """
        job, pipe = self._start()
        self._calls += 1
        try:
            pipe.send((function, arguments))
            answered = pipe.poll(seconds)
            status, fields, used = pipe.recv() if answered else (0, {}, 0.0)
        except (EOFError, ConnectionError):
            self.stop()
            return Ended(-1, job.output()[self._seen :], error="death of the process")
        except BaseException:  # the case is over; the answer to this call must not reach another
            self.stop()
            raise
        if not answered:
            job.signal(signal.SIGABRT)  # faulthandler prints where it stands
            job.is_running(2.0)
        self._keep_servers(job)
        output = job.output()[self._seen :]
        self._seen += len(output)
        if not answered or self._calls >= CALLS:
            self.stop()
        if not answered or used > limit:
            raise Damage(Verdict.HUNG, f"no end in time ({used:.1f} s used):\n{output[-3000:]}")
        return Ended(status, output, **fields)

    def value_of(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the value of a call that nothing disturbs."""
        ended = self.call(function, *arguments, seconds=200.0, limit=math.inf)
        if ended.status != 0:
            raise Damage(Verdict.UNNAMED_ERROR, f"undisturbed, {function}: {ended.tail()}")
        return ended.value

    def _start(self) -> tuple[Job, Connection]:
        if self._job is None or self._pipe is None:
            self._pipe, child = multiprocessing.Pipe()
            self._job, self._calls, self._seen = jobs.start(_serve, child, self._pipe), 0, 0
            child.close()
            jobs.KEPT.add(self._job.pid)
        return self._job, self._pipe

    def _keep_servers(self, job: Job) -> None:
        """Keep the servers of `multiprocessing`, which live as long as the process."""
        for task in Path(f"/proc/{job.pid}/task").glob("*/children"):
            for child in task.read_text().split():
                with contextlib.suppress(OSError):
                    if "multiprocessing" in Path(f"/proc/{child}/cmdline").read_text():
                        jobs.KEPT.add(int(child))

    def stop(self) -> None:
        """End the process."""
        if self._job is not None and self._pipe is not None:
            self._pipe.close()
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                self._job.signal(signal.SIGKILL)
                self._job.is_running(5.0)
            jobs.KEPT.discard(self._job.pid)
        self._job = self._pipe = None


def _serve(pipe: Connection, other_end: Connection) -> None:
    """Answer calls until the campaign has ended."""
    other_end.close()
    os.environ["XLA_FLAGS"] += f" {TWO_DEVICES}"
    with contextlib.suppress(EOFError):
        while True:
            function, arguments = pipe.recv()
            began = time.process_time()
            status, fields = jobs.attempt(function, arguments)
            sys.stdout.flush()
            try:
                pipe.send((status, fields, time.process_time() - began))
            except BrokenPipeError:
                return


WARM = WarmProcess()
