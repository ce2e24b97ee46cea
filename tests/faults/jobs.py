"""Jobs: functions that run in processes of their own, forked with jaxrl imported."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import importlib
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from faults.outcomes import Damage, Outcome, Verdict
from jaxrl.envs.host.errors import SimulatorError

NAMED: tuple[type[Exception], ...] = (
    ValueError, OSError, ImportError, FloatingPointError, SimulatorError,
)  # fmt: skip
"""The documented types of errors."""
PRELOADED = (
    "jaxrl", "jaxrl.tuning.sweeps.loop", "jaxrl.cli.train", "jaxrl.cli.sweep", "optuna",
    "orbax.checkpoint", "tensorboardX", "matplotlib.pyplot", "envpool", "small_algorithms",
)  # fmt: skip
"""Imported before the first fork; none of them starts threads. Gymnax does: it makes arrays."""
KILLED = Counter[str]()
"""Jobs that a campaign killed, by signal."""
PR_SET_CHILD_SUBREAPER = 36
KEPT: set[int] = set()
"""Processes that serve many cases (`warm.py`) and stay when a case ends."""


def prepare() -> None:
    """Import what jobs need, and become the parent of processes whose parents die."""
    for name in PRELOADED:
        importlib.import_module(name)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # JAX warns of every fork; it has started no thread yet, see `start`.
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of a job."""

    status: int
    """Its exit status; minus the signal that ended it."""
    output: str
    """All that it printed, and the traceback of an error."""
    value: Any = None
    """What the function returned."""
    error: str = ""
    """The type of the exception that ended it; empty without one."""
    text: str = ""
    """The exception's text."""
    is_documented: bool = False
    """Whether the exception is of a documented type."""

    def names(self, *words: str) -> bool:
        """Return whether it ended by a named error, not by a signal, and with all these words."""
        return self.status > 0 and self.is_documented and all(word in self.text for word in words)

    def tail(self, length: int = 1500) -> str:
        """Return the status, the error and the last part of the output."""
        return f"status {self.status}, {self.error}: {self.text[:500]}\n{self.output[-length:]}"


class Job:
    """A process that runs a function."""

    def __init__(self, pid: int, scratch: Path):
        self.pid, self._scratch = pid, scratch
        self._handle = os.pidfd_open(pid)
        self._status: int | None = None

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.is_running():
            os.kill(self.pid, number)

    def is_running(self, seconds: float = 0.0) -> bool:
        """Return whether it runs; wait for its end for some seconds first."""
        if self._status is None and select.select([self._handle], [], [], max(seconds, 0.0))[0]:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._handle)
        return self._status is None

    def output(self) -> str:
        """Return what it has printed so far."""
        return (self._scratch / "output").read_text(errors="replace")

    def end(self, seconds: float = 120.0) -> Ended:
        """Wait for its end; kill it and raise `Damage` if that takes too long."""
        if self.is_running(seconds):
            os.kill(self.pid, signal.SIGABRT)  # faulthandler prints where it stands
            if self.is_running(2.0):
                os.kill(self.pid, signal.SIGKILL)
                self.is_running(10.0)
            raise Damage(Verdict.HUNG, f"no end after {seconds:.0f} s:\n{self.output()[-3000:]}")
        assert self._status is not None
        report = self._scratch / "report"
        fields = pickle.loads(report.read_bytes()) if report.exists() else {}
        return Ended(self._status, self.output(), **fields)


def start(function: Callable[..., Any], *arguments: Any) -> Job:
    """Start a job, which calls a function; what it returns must be possible to pickle."""
    assert len(os.listdir("/proc/self/task")) == 1, "only a process of one thread may fork"
    scratch = Path(tempfile.mkdtemp(dir=scratch_directory()))
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            _run(function, arguments, scratch)
        finally:
            os._exit(70)  # never return into the campaign
    return Job(pid, scratch)


def call(function: Callable[..., Any], *arguments: Any, seconds: float = 120.0) -> Ended:
    """Run a job to its end."""
    return start(function, *arguments).end(seconds)


def value_of(function: Callable[..., Any], *arguments: Any, seconds: float = 120.0) -> Any:
    """Return what a job returns that nothing disturbs."""
    ended = call(function, *arguments, seconds=seconds)
    if ended.status != 0:
        raise Damage(Verdict.UNNAMED_ERROR, f"undisturbed, {function.__name__}: {ended.tail()}")
    return ended.value


def scratch_directory() -> Path:
    """Return the campaign's directory, outside of what cases damage."""
    return Path(os.environ["JAXRL_FAULTS_SCRATCH"])


def command(*arguments: str) -> None:
    """Run a `jaxrl` command line, as a job."""
    from jaxrl.__main__ import main

    sys.argv[:] = ["jaxrl", *arguments]
    sys.exit(main(arguments))


def _run(function: Callable[..., Any], arguments: Any, scratch: Path) -> NoReturn:
    """Run a job's function in the forked process, and end as an interpreter ends."""
    import faulthandler

    log = os.open(scratch / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    report = os.open(scratch / "report.new", os.O_WRONLY | os.O_CREAT)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()  # SIGABRT prints all stacks
    status, fields = attempt(function, arguments)
    os.write(report, pickle.dumps(fields))
    os.close(report)
    os.replace(scratch / "report.new", scratch / "report")
    getattr(threading, "_shutdown")()  # noqa: B009 (not public: waits for threads)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def attempt(function: Callable[..., Any], arguments: Any) -> tuple[int, dict[str, Any]]:
    """Call a function; return the exit status of such a process, and fields of `Ended`."""
    try:
        return 0, {"value": function(*arguments)}
    except SystemExit as end:
        fields = {}
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            is_error = end.code.startswith("error:")
            fields = {"error": "SystemExit", "text": end.code, "is_documented": is_error}
        return int(end.code or 0) if isinstance(end.code, int | None) else 1, fields
    except BaseException as error:
        traceback.print_exc()
        return 1, {
            "error": type(error).__name__,
            "text": str(error),
            "is_documented": isinstance(error, NAMED),
        }


# --- what cases say of an end --------------------------------------------------------------------


def check_named(ended: Ended, *words: str) -> None:
    """Raise `Damage` unless a job ended by a named error with these words."""
    if not ended.names(*words):
        expected = f"expected a named error with {words}" if words else "expected a named error"
        raise Damage(Verdict.UNNAMED_ERROR, f"{expected}, got {ended.tail()}")


def check_succeeded(ended: Ended, verdict: Verdict = Verdict.LOST) -> None:
    """Raise `Damage` with this verdict unless a job ended well."""
    if ended.status != 0:
        raise Damage(verdict, ended.tail())


def refused(ended: Ended, *words: str) -> Outcome:
    """Return the outcome of bad input, which must be refused by a named error with these words."""
    if ended.status == 0:
        raise Damage(Verdict.SILENTLY_WRONG, f"accepted; expected an error with {words}")
    check_named(ended, *words)
    return Outcome(Verdict.SURVIVED, ended.text[:200])


# --- processes -----------------------------------------------------------------------------------


def descendants(pid: int) -> dict[int, str]:
    """Return the processes that a process and its children started: their ids and commands."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except OSError:  # it has ended
            continue
        if tail.split()[0] != "Z":
            names[int(entry.name)] = head.partition("(")[2]
        parents[int(entry.name)] = int(tail.split()[1])
    found: set[int] = set()
    newest = {pid}
    while newest:
        newest = {child for child, parent in parents.items() if parent in newest} - found
        found |= newest
    return {child: names[child] for child in found if child in names}


def end_leftovers(before: set[int], seconds: float = 3.0) -> list[str]:
    """Kill the processes that were not there before, and return their commands.

    They have some seconds to end by themselves.
    """
    deadline = time.monotonic() + seconds
    while left := {p: n for p, n in descendants(os.getpid()).items() if p not in before | KEPT}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    _reap()
    return sorted(left.values())


def _reap() -> None:
    """Take in the children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
