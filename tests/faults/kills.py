"""Kills of runs, sweeps, workers and joined processes: what resumes must end as if undisturbed."""

from __future__ import annotations

import functools
import random
import signal
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from postgresql import postgresql_programs, postgresql_server

from faults.jobs import Job, call, check_succeeded, command, start, value_of
from faults.outcomes import SURVIVED, Damage, Kind, Outcome, Verdict
from faults.work import (
    ALGORITHMS,
    NUM_PHASES,
    SIGNALS,
    SIMULATED,
    Run,
    Sweep,
    check_killed,
    check_notes,
    check_same,
    draw_run,
    draw_sweep,
    kill,
    saved_updates,
    undisturbed,
)
from jaxrl.distributed.liveness import LOST_STATUS

SHARING = ("RandomSearch", "HyperTrick", "SuccessiveHalving", "ASHA")
"""Schedulers of sweeps that workers share; they have as many trials as random search."""
WORKERS = ("a", "b", "c")
HEARTBEAT = 2  # seconds
SECONDS_PER_CHUNK = 0.1
"""Of workers: without it, the first one would run all trials."""
TRAIN_JOINED = (
    "train", "ppo", "--num-envs", "8", "--num-steps", "8", "--num-minibatches", "1", "--num-epochs",
    "1", "--log-every", "1", "--num-evaluations", "0", "--total-steps", "1000000000",
    "--num-hosts", "2",
)  # fmt: skip


# --- runs ----------------------------------------------------------------------------------------


def kill_run(rng: random.Random, directory: Path) -> Outcome:
    """Kill a run whose environments are saved: it must end bit for bit as undisturbed."""
    run = draw_run(rng)
    for _ in range(rng.randrange(1, 4)):
        kill(rng, run, directory / "run")
    newest = max(saved_updates(directory / "run"), default=None)
    check_same(run, call(run.train, directory / "run"))
    assert newest is None or newest <= run.num_updates
    return SURVIVED


def kill_simulated(rng: random.Random, directory: Path) -> Outcome:
    """Kill a run on envpool: the learner must be restored, rows and counters must agree."""
    run_dir = directory / "run"
    run = Run(rng.choice(ALGORITHMS), SIMULATED, chunk=rng.randrange(1, 5), is_noted=True)
    for _ in range(rng.randrange(1, 4)):
        kill(rng, run, run_dir)
    newest = max(saved_updates(run_dir), default=None)
    ended = call(run.train, run_dir)
    check_succeeded(ended)
    check_notes(run_dir, newest)
    rows = [row for row in ended.value["rows"] if "loss" in row]
    if [row["update"] for row in rows] != list(range(1, run.num_updates + 1)):
        raise Damage(Verdict.SILENTLY_WRONG, f"rows of {run}: {rows}")
    summary = ended.value["summary"]
    episodes = sum(row["episode_count"] for row in rows)
    if (summary["valid_steps"], summary["episodes"]) != (rows[-1]["steps"], episodes):
        raise Damage(Verdict.SILENTLY_WRONG, f"totals of {run}: {summary}, but {rows}")
    return SURVIVED


def kill_joined(rng: random.Random, directory: Path) -> Outcome:
    """Kill one of two processes that train one agent: the other must end with an error."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    where = "--run-dir", str(directory / "run"), "--coordinator", address
    both = [start(command, *TRAIN_JOINED, *where, "--host-id", str(n)) for n in (0, 1)]
    metrics = directory / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and both[0].is_running(0.05):
        pass
    both[0].is_running(rng.uniform(0, 2))
    killed = rng.randrange(2)
    both[killed].signal(signal.SIGKILL)
    check_killed(both[killed].end(), signal.SIGKILL)
    ended, line = both[1 - killed].end(60.0), f"process {1 - killed} lost process {killed}"
    errors = [text for text in ended.output.splitlines() if text.startswith("error: ")]
    is_named = ended.status == LOST_STATUS and len(errors) == 1 and line in errors[0]
    if not is_named or "Traceback" in ended.output:
        raise Damage(Verdict.UNNAMED_ERROR, f"expected {line!r}, got {ended.tail()}")
    return SURVIVED


# --- sweeps --------------------------------------------------------------------------------------


def kill_sweep(rng: random.Random, directory: Path, is_static: bool) -> Outcome:
    """Kill a sweep up to three times, resume it each time, and compare its end and its study."""
    sweep, run_dir = draw_sweep(rng, is_static), directory / "sweep"
    for _ in range(rng.randrange(1, 4)):
        kill(rng, sweep, run_dir)
    ended = call(sweep.train, run_dir)
    check_same(sweep, ended)
    check_study(sweep.url(run_dir), [trial["scores"] for trial in ended.value["trials"]])
    return SURVIVED


def kill_workers(rng: random.Random, directory: Path, url: str) -> Outcome:
    """Kill some of three workers, restart most of them, and look at their study."""
    sweep = Sweep(rng.choice(SHARING), rng.random() < 0.3)
    full, seconds = undisturbed(Sweep("RandomSearch", sweep.is_static))

    def begin(worker: str) -> Job:
        return start(work, sweep, directory / worker, url, worker)

    working = {worker: begin(worker) for worker in WORKERS}
    for _ in range(rng.randrange(1, 4)):
        worker = rng.choice(list(working))
        working[worker].is_running(rng.uniform(0, 2 * seconds))
        number = rng.choice(SIGNALS)
        working[worker].signal(number)
        check_killed(working[worker].end(), number)
        if rng.random() < 0.7 or len(working) == 1:
            working[worker] = begin(worker)
        else:
            del working[worker]
    for worker, job in working.items():
        ended = job.end()
        if ended.status != 0:
            raise Damage(Verdict.UNNAMED_ERROR, f"{worker}, not killed: {ended.tail()}")
    check_study(url, [trial["scores"] for trial in full["trials"]])
    return SURVIVED


def work(sweep: Sweep, directory: Path, url: str, worker: str) -> None:
    """Work on the study that others share, slowly enough for all to take part; a job."""
    from jaxrl.tuning.sweeps.loop import SweepLoop

    train_chunk = SweepLoop._train_chunk

    def train_slowly(loop: Any) -> None:
        time.sleep(SECONDS_PER_CHUNK)
        train_chunk(loop)

    setattr(SweepLoop, "_train_chunk", train_slowly)  # noqa: B010 (its type is another one)
    shared = {"storage": url, "worker": worker, "agents_dir": directory.parent / "agents"}
    sweep.train(directory, heartbeat_seconds=HEARTBEAT, **shared)


def kill_workers_on_postgresql(rng: random.Random, directory: Path) -> Outcome:
    """Kill workers whose study is on a server."""
    if postgresql_programs() is None:
        return Outcome(Verdict.SKIPPED, "PostgreSQL is not installed")
    with postgresql_server() as url:
        return kill_workers(rng, directory, url)


def stored_trials(url: str) -> list[dict[str, Any]]:
    """Return all trials of a study; a job."""
    import optuna

    from jaxrl.tuning.studies.storage import close_storage, open_storage
    from jaxrl.tuning.studies.stored_trials import indexed_trials

    storage = open_storage(url, 60)
    study = optuna.load_study(study_name="study", storage=storage)
    trials = [
        {"index": index, "state": trial.state.name, "scores": trial.intermediate_values}
        for index, trial in indexed_trials(study)
    ]
    close_storage(storage)
    return trials


def check_study(url: str, expected: list[list[float]]) -> None:
    """Raise unless every trial of a study ended exactly once, with its own scores.

    Args:
      expected: the scores of each trial's phases.
    """
    trials = value_of(stored_trials, url)
    ended = [trial for trial in trials if trial["state"] in ("COMPLETE", "PRUNED")]
    left = [trial for trial in trials if trial["state"] in ("RUNNING", "WAITING")]
    counts = Counter(trial["index"] for trial in ended)
    if missing := sorted(set(range(len(expected))) - set(counts)):
        raise Damage(Verdict.LOST, f"trials {missing} never ended, left are {left}")
    if left or set(counts.values()) != {1}:
        raise Damage(Verdict.SILENTLY_WRONG, f"trials ended {dict(counts)} times, left {left}")
    for trial in ended:
        scores = [score for _, score in sorted(trial["scores"].items())]
        own = expected[trial["index"]][: len(scores)]
        if len(scores) != len(own) or not np.allclose(scores, own, rtol=1e-4):
            raise Damage(Verdict.SILENTLY_WRONG, f"{trial} should have the scores {own}")
        if trial["state"] == "COMPLETE" and len(scores) != NUM_PHASES:
            raise Damage(Verdict.SILENTLY_WRONG, f"{trial} is not complete")


KINDS = (
    Kind("kill-run", kill_run),
    Kind("kill-envpool", kill_simulated),
    Kind("kill-joined", kill_joined),
    Kind("kill-sweep", functools.partial(kill_sweep, is_static=False)),
    Kind("kill-sweep-static", functools.partial(kill_sweep, is_static=True)),
    Kind(
        "kill-workers-sqlite",
        lambda rng, directory: kill_workers(rng, directory, f"sqlite:///{directory}/study.db"),
    ),
    Kind("kill-workers-postgresql", kill_workers_on_postgresql),
)
