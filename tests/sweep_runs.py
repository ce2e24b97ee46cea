"""Small sweeps and searches of the toy algorithm, and ways to stop sweeps, for tests."""

import functools
import math
from typing import Any

import jax
import numpy as np
from toy_algorithm import InterruptAfter, ToyConfig, toy

import jaxrl
from jaxrl.tuning import (
    Choice,
    LogUniform,
    Phase,
    QLogUniform,
    Uniform,
    search,
    sweep,
    trial_key,
    trial_values,
)
from jaxrl.tuning.sweeps import loop

SPACE = {"learning_rate": LogUniform(1e-5, 1e-1), "gamma": Uniform(0.3, 0.9)}
STATIC = SPACE | {"num_steps": QLogUniform(1, 8, rungs=3), "activation": Choice(("tanh", "relu"))}

RUN: dict[str, Any] = {
    "seed": 3,
    "num_evaluations": 0,
    "chunk_updates": 2,
    "checkpoint_seconds": 0.0,
    "progress_bar": False,
    "config": ToyConfig(),
}
"""Arguments of a run with a checkpoint after every second update."""
UPDATES = 3  # of a phase
SEED = 5


@functools.cache
def toy_algorithm():
    """One algorithm for all sweeps of a process, whose programs are then compiled once."""
    return toy()


def run(directory, scheduler, space=SPACE, algo=None, config=None, **arguments):
    """Sweep, of the toy algorithm by default, with a study in a journal beside the directory."""
    algo, config = algo or toy_algorithm(), config or ToyConfig()
    defaults: dict[str, Any] = {
        "num_lanes": 4,
        "phase": Phase(UPDATES),
        "seed": SEED,
        "strategy": "vmap",
        "progress_bar": False,
        "checkpoint_seconds": 1e9,
        "keep_best": 0,
        "storage": f"journal:///{directory.parent / (directory.name + '.log')}",
    }
    return sweep(algo, config, space, scheduler, run_dir=directory, **defaults | arguments)


def search_of(scheduler, num_lanes=4, space=SPACE, algo=None, **arguments):
    """Return a search in one program, as a function of a key and further arguments."""
    algo = algo or toy_algorithm()
    return functools.partial(
        search, algo, ToyConfig(), space, scheduler, num_lanes, UPDATES, **arguments
    )


@functools.cache
def searched(scheduler, num_lanes=4, **arguments):
    """Return what one program finds with the seed of `run`."""
    return jax.jit(search_of(scheduler, num_lanes, **arguments))(jax.random.key(SEED))


def outcome(result):
    """Return what must not depend on interruptions: trials, values, scores, decisions."""
    return result.summary["trials"]


@functools.cache
def scores_of_full_trials(seed, num_trials, num_phases):
    """Return every trial's score of each phase `[trials, phases]` if none were stopped."""
    key = jax.random.key(seed)

    @jax.jit
    def train(trial):
        config = ToyConfig().replace(**trial_values(SPACE, key, trial))
        num_updates = UPDATES * num_phases
        _, metrics = jaxrl.train(toy_algorithm(), config, trial_key(key, trial), num_updates)
        names = ("episode_return_sum", "episode_count")
        returns, counts = (metrics[name].reshape(-1, UPDATES).sum(1) for name in names)
        return returns / counts

    return np.stack([train(trial) for trial in range(num_trials)])


class KilledError(Exception):
    """Raised where a sweep is killed."""


def _on_report(monkeypatch, act):
    """Call `act(n)` whenever a lane has reported; n counts the chunks that had reports so far."""
    original = loop.SweepLoop._report
    counted = set()

    def report(self, *arguments):
        original(self, *arguments)
        counted.add(self.state.chunks)
        act(len(counted))

    monkeypatch.setattr(loop.SweepLoop, "_report", report)


def kill_after_reports(monkeypatch, chunks):
    """Let sweeps die, as by SIGKILL, while lanes report for the n-th time."""

    def act(count):
        if count == chunks:
            raise KilledError

    _on_report(monkeypatch, act)


def stop_after_reports(monkeypatch, chunks):
    """Let sweeps stop, as by Ctrl-C, after the chunk in which lanes report for the n-th time."""
    interrupt = InterruptAfter(math.inf)

    def act(count):
        if count == chunks:
            interrupt.left = 0

    _on_report(monkeypatch, act)
    monkeypatch.setattr(loop, "Interrupt", lambda: interrupt)


def stop_after(monkeypatch, chunks):
    """Let sweeps stop, as by Ctrl-C, after that many chunks."""
    monkeypatch.setattr(loop, "Interrupt", lambda: InterruptAfter(chunks))
