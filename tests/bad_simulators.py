"""Simulators that do wrong in every way, each in one place: in one call, or in what they return."""

import ctypes
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
from gymnasium.vector import SyncVectorEnv
from simulators import Counting

MARK = "a wheel came off"
"""Text of the exceptions of `RAISES`: the trainer's error must have it."""
FAILS_AT = 2
"""The step that fails; it also ends the episode."""


class TwoArguments(Exception):
    """An exception that pickle cannot make again."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


class Unprintable(Exception):
    def __str__(self):
        raise SystemExit("no text")


class Base(BaseException):
    """No `Exception`."""


def raises(kind, *arguments):
    def deed():
        raise kind(*arguments)

    return deed


def unpicklable():
    class Local(Exception):
        pass

    error = Local(MARK)
    error.lock = threading.Lock()  # type: ignore
    raise error


def chained():
    try:
        raise KeyError("the cause")
    except KeyError as cause:
        raise RuntimeError(MARK) from cause


def prints_and_raises():
    os.write(1, b"\x00\xff\x1b[2J garbage" * 100)
    raise ZeroDivisionError(MARK)


def recursion():
    return recursion()


def allocates():
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**36, hard))
    return [np.ones(2**33) for _ in range(64)]


def hangs_with_lock():
    """Hang in a function that holds Python's global lock, so that no other thread runs."""
    re.match("(a+)+$", "a" * 64 + "b")


def note(pid):
    """Write a process id where a test looks for processes that are left."""
    if path := os.environ.get("JAXRL_TEST_PIDS"):
        with open(path, "a") as file:
            file.write(f"{pid}\n")


def leaves_children():
    """Start a child, one with a session of its own, and one whose parent has died."""
    note(subprocess.Popen(["sleep", "1000"]).pid)
    note(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
    middle = os.fork()
    if middle == 0:
        os.setsid()
        note(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
        os._exit(0)
    os.waitpid(middle, 0)
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=time.sleep, args=(1000,))
    process.start()
    note(process.pid)


def with_children(deed):
    def both():
        leaves_children()
        deed()

    return both


def dies_beside_a_child():
    """Die, while a child keeps the connection to the trainer open."""
    child = os.fork()
    if child == 0:
        time.sleep(1000)
    note(child)
    os._exit(3)


RAISES = {
    "ordinary": raises(ValueError, MARK),
    "unpicklable": unpicklable,
    "two-arguments": raises(TwoArguments, MARK, "no wheel"),
    "chained": chained,
    "base": raises(Base, MARK),
    "system-exit": raises(SystemExit, MARK),
    "interrupt": raises(KeyboardInterrupt, MARK),
    "stop-iteration": raises(StopIteration, MARK),
    "long-text": raises(ValueError, MARK + "x" * 10**7),
    "surrogate": raises(ValueError, f"{MARK}\udc80"),
    "prints-and-raises": prints_and_raises,
}
SAYS_LITTLE = {
    "unprintable": raises(Unprintable),
    "exits-well": sys.exit,
    "recursion": recursion,
    "allocates": allocates,
    "children-raises": with_children(raises(ZeroDivisionError)),
}
"""Raises errors that do not have `MARK`."""
HANGS = {
    "sleep": lambda: time.sleep(1000),
    "lock": hangs_with_lock,
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "children-hangs": with_children(hangs_with_lock),
}
DIES = {
    "os-exit": lambda: os._exit(3),
    "os-exit-0": lambda: os._exit(0),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "closes-files": lambda: os.closerange(0, 1024),
    "kills-parent": lambda: os.kill(os.getppid(), signal.SIGKILL) or time.sleep(1000),
    "children-dies": with_children(lambda: os._exit(3)),
    "child-with-connection": dies_beside_a_child,
}
LITTERS = {
    "children": leaves_children,
    "prints": lambda: print("x" * 10**6, flush=True),
    "closes-stdio": lambda: os.closerange(0, 3),
    "chdir": lambda: os.chdir("/"),
}
"""Does no wrong by itself."""
DEEDS = RAISES | SAYS_LITTLE | HANGS | DIES | LITTERS

OBSERVATIONS = {
    "obs-none": None,
    "obs-text": "obs",
    "obs-ragged": [[1.0], [2.0, 3.0]],
    "obs-shape": np.zeros(3, np.float32),
    "obs-complex": np.array([1j, 2j]),
    "obs-nan": np.array([1.0, np.nan], np.float32),
    "obs-parts": {"a": 1},
}
STEPS = {
    "reward-none": (None, False, False, {}),
    "reward-text": ("1", False, False, {}),
    "reward-array": (np.ones(1), False, False, {}),
    "reward-nan": (np.nan, False, False, {}),
    "reward-huge": (1e300, False, False, {}),
    "terminated-text": (0.0, "no", False, {}),
    "terminated-none": (0.0, None, False, {}),
    "terminated-number": (0.0, 0.5, False, {}),
    "truncated-array": (0.0, False, np.array([False]), {}),
    "four-values": (0.0, False, {}),
    "nothing": None,
}
"""What a step returns after its observation; None for nothing at all."""


class Bad(Counting):
    """An environment that does wrong in one place.

    Args:
      where: "make", "reset", "restart" (a later reset), "step", "render" or "close".
      how: a key of `DEEDS` or `OBSERVATIONS`; in a step also of `STEPS`.
      pids: a file for the ids of its children.
      spared: id of a process in which it does no wrong: of the trainer, which draws pictures.
    """

    def __init__(self, where, how, pids="", spared=0, render_mode=None):
        super().__init__(length=FAILS_AT, render_mode=render_mode)
        os.environ["JAXRL_TEST_PIDS"] = pids
        self.where, self.how, self.fails = where, how, os.getpid() != spared
        self.steps = 0
        self._act("make")

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        return self._act("reset" if self.episode == 1 else "restart", obs), info

    def step(self, action):
        obs, *values = super().step(action)
        self.steps += 1
        if self.steps < FAILS_AT:
            return obs, *values
        if self.where == "step" and self.fails and self.how in STEPS:
            wrong = STEPS[self.how]
            return wrong and (obs, *wrong)
        return self._act("step", obs), *values

    def render(self):
        self._act("render")
        return super().render()

    def close(self):
        self._act("close")

    def _act(self, where, good=None):
        """Return what is good, unless this is the place to do wrong."""
        if where != self.where or not self.fails:
            return good
        if self.how in DEEDS:
            self.fails = self.how not in LITTERS  # once is enough
            DEEDS[self.how]()
            return good
        return OBSERVATIONS[self.how]


def make(**keywords):
    return Bad(**keywords)


def make_batch(num_envs, **keywords):
    """Return a vector environment of one's own."""
    return SyncVectorEnv([lambda: Bad(**keywords)] * num_envs)
