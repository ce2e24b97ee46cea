"""A soak: programs that work for minutes must take no more memory, files, threads, compilations.

    python -m tests.faults --soak --minutes 30 --out soak.json

A run with many checkpoints, a sweep with many refilled lanes, and a run on Atari train side by
side. It writes their samples, and a plot of them beside the file.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from faults.jobs import check_succeeded, scratch_directory, start


class Sample(NamedTuple):
    """What a process takes at a moment."""

    seconds: float
    mebibytes: float
    files: int
    threads: int
    compilations: int


ALLOWED = Sample(seconds=np.inf, mebibytes=16, files=1, threads=2, compilations=0)
"""By how much each may grow over the second half: allocators keep what they had freed, pools of
threads grow up to their size."""


def train_run(directory: Path) -> None:
    """Train PPO, with checkpoints all the time; a job."""
    _count_compilations(directory)
    import jaxrl

    config = jaxrl.PPOConfig(num_steps=16, num_minibatches=2, hidden_sizes=(16,), anneal_updates=0)
    jaxrl.run(
        jaxrl.ppo(jaxrl.make("CartPole-v1", 8)), config, run_dir=directory, total_steps=10**11,
        num_evaluations=0, log_every=100, checkpoint_seconds=0.5, chunk_seconds=0.2,
        progress_bar=False,
    )  # fmt: skip


def train_sweep(directory: Path) -> None:
    """Search with short trials, so that lanes are refilled all the time; a job."""
    _count_compilations(directory)
    import sweep_runs

    from jaxrl.tuning import RandomSearch

    storage = f"sqlite:///{directory}.db"
    scheduler = RandomSearch(10_000, 2)
    sweep_runs.run(directory, scheduler, storage=storage, keep_best=1, checkpoint_seconds=2.0)


def train_atari(directory: Path) -> None:
    """Train PPO on Pong; a job."""
    _count_compilations(directory)
    import jaxrl

    config = jaxrl.PPOConfig(num_steps=16, num_minibatches=1, num_epochs=1, torso="ga3c_cnn")
    jaxrl.run(
        jaxrl.ppo(jaxrl.make("envpool/Pong-v5", 4)), config, run_dir=directory, total_steps=10**11,
        num_evaluations=0, checkpoint_seconds=2.0, chunk_seconds=1.0, progress_bar=False,
    )  # fmt: skip


PROGRAMS = {"run": train_run, "sweep": train_sweep, "atari": train_atari}


def _count_compilations(directory: Path) -> None:
    """Write a byte for every program that this process compiles."""
    import jax

    def count(event: str, duration_secs: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            with directory.with_suffix(".compilations").open("a") as file:
                file.write(".")

    jax.monitoring.register_event_duration_secs_listener(count)


def sample(pid: int, began: float, directory: Path) -> Sample:
    """Return what a process takes now."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    counted = directory.with_suffix(".compilations")
    return Sample(
        seconds=round(time.monotonic() - began, 1),
        mebibytes=int(status["VmRSS"].split()[0]) / 1024,
        files=len(os.listdir(f"/proc/{pid}/fd")),
        threads=int(status["Threads"]),
        compilations=counted.stat().st_size if counted.exists() else 0,
    )


def watch(seconds: float) -> dict[str, list[Sample]]:
    """Let all programs train for some seconds, stop them, and return samples of each."""
    scratch, began = Path(tempfile.mkdtemp(dir=scratch_directory())), time.monotonic()
    jobs = {name: start(program, scratch / name) for name, program in PROGRAMS.items()}
    samples: dict[str, list[Sample]] = {name: [] for name in PROGRAMS}
    while time.monotonic() - began < seconds and all(job.is_running() for job in jobs.values()):
        for name, job in jobs.items():
            samples[name].append(sample(job.pid, began, scratch / name))
        time.sleep(seconds / 200)
    for job in jobs.values():
        job.signal(signal.SIGTERM)
    for job in jobs.values():
        check_succeeded(job.end())
    return samples


def growth(samples: list[Sample]) -> list[str]:
    """Return what grew over the second half of the samples, one line for each.

    Each quantity's median over the last sixth is compared with that over the first sixth of the
    second half.
    """
    second_half = np.array(samples[len(samples) // 2 :])
    size = max(len(second_half) // 3, 1)
    before = np.median(second_half[:size], axis=0)
    after = np.median(second_half[-size:], axis=0)
    return [
        f"{name}: from {b:.0f} to {a:.0f}"
        for name, b, a, limit in zip(Sample._fields, before, after, ALLOWED, strict=True)
        if a > b + limit
    ]


def plot(samples: dict[str, list[Sample]], path: Path) -> None:
    """Draw each quantity of all programs over time."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(4, 1, sharex=True, figsize=(8, 10))
    for ax, quantity in zip(axes, Sample._fields[1:], strict=True):
        for name, taken in samples.items():
            ax.plot([x.seconds for x in taken], [getattr(x, quantity) for x in taken], label=name)
        ax.set_ylabel(quantity)
        ax.set_ylim(bottom=0)
    axes[0].legend()
    axes[-1].set_xlabel("seconds")
    figure.savefig(path)


def soak(minutes: float, out: Path | None) -> dict[str, Any]:
    """Watch all programs; return their samples and what grew."""
    samples = watch(60 * minutes)
    grown = {name: growth(taken) for name, taken in samples.items()}
    for name, taken in samples.items():
        last = ", ".join(f"{k} {v:.0f}" for k, v in taken[-1]._asdict().items())
        print(f"{name}: {last}; grew: {', '.join(grown[name]) or 'nothing'}")
    if out is not None:
        plot(samples, out.with_suffix(".png"))
    return {
        "growth": grown,
        "samples": {name: [x._asdict() for x in taken] for name, taken in samples.items()},
    }
