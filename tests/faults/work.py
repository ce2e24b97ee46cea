"""Short runs and sweeps that cases damage, and how they end undisturbed."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar, Protocol

from faults.jobs import (
    KILLED,
    Ended,
    Job,
    call,
    check_succeeded,
    scratch_directory,
    start,
    value_of,
)
from faults.outcomes import Damage, Verdict

ALGORITHMS = (
    "ppo", "ppo-gru", "a2c", "a2c-lstm", "impala", "impala-lstm", "dqn", "dqn-prioritized", "pqn",
    "pqn-lstm", "r2d2",
)  # fmt: skip
PURE = ("CartPole-v1", "probe/TimeLimit-v0", "probe/Recall-v0")
SIMULATED = "envpool/CartPole-v1"
SCHEDULERS = ("RandomSearch", "HyperTrick", "SuccessiveHalving", "HyperBand", "ASHA")
NUM_PHASES = 3
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TIMING = ("seconds", "simulator_wait", "simulator_idle")


class Work(Protocol):
    """A run or a sweep; equal ones end equally."""

    parts: ClassVar[tuple[str, ...]]
    """What no disturbance may change of what `train` returns."""

    def train(self, directory: Path, fatal: tuple[int, int] | None = None) -> dict[str, Any]:
        """Begin or resume it; a job.

        Args:
          fatal: as for `count_file_operations`.

        Returns:
          Its `parts`, the number of file `operations`, and the `bytes` that it leaves.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of one of the smallest algorithms (`small_algorithms.CONFIGS`)."""

    algorithm: str
    env: str
    log_every: int = 1
    num_updates: int = 14
    chunk: int = dataclasses.field(default=2, compare=False)
    """Updates between two checkpoints."""
    is_noted: bool = dataclasses.field(default=False, compare=False)
    """Whether its learners are noted, see `note_learners`."""
    parts: ClassVar[tuple[str, ...]] = ("state", "rows", "summary")

    def train(self, directory: Path, fatal: tuple[int, int] | None = None) -> dict[str, Any]:
        from small_algorithms import CONFIGS, algorithm

        import jaxrl

        operations = count_file_operations(directory, *(fatal or ()))
        if self.is_noted:
            note_learners(directory)
        algo, config = algorithm(self.algorithm, self.env), CONFIGS[self.algorithm]
        result = jaxrl.run(
            algo, config, seed=3, run_dir=directory, resume=True, log_every=self.log_every,
            total_steps=self.num_updates * algo.env.num_envs * algo.num_steps(config),
            num_evaluations=2, eval_episodes=2, chunk_updates=self.chunk, checkpoint_seconds=0.0,
            progress_bar=False,
        )  # fmt: skip
        return {
            "state": digest(result.state),
            "rows": rows_of(directory),
            "summary": {k: v for k, v in result.summary.items() if "second" not in k},
            "operations": operations[0],
            "bytes": size_of(directory),
        }


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep of the toy algorithm, with its study beside its directory."""

    scheduler: str
    is_static: bool = False
    num_trials: int = 10
    storage: str = dataclasses.field(default="sqlite", compare=False)
    parts: ClassVar[tuple[str, ...]] = ("trials", "best")

    def train(
        self, directory: Path, fatal: tuple[int, int] | None = None, **arguments: Any
    ) -> dict[str, Any]:
        import sweep_runs

        from jaxrl import tuning

        sizes = {"HyperBand": (NUM_PHASES,)}.get(self.scheduler, (self.num_trials, NUM_PHASES))
        scheduler = getattr(tuning, self.scheduler)(*sizes)
        space = sweep_runs.STATIC if self.is_static else sweep_runs.SPACE
        study = self.study(directory)
        operations = count_file_operations(directory, *(fatal or ()))
        options = {"storage": self.url(directory), "num_lanes": 2, "checkpoint_seconds": 0.0}
        options |= {"keep_best": 1} | arguments
        result = sweep_runs.run(
            directory, scheduler, space, study_name="study", resume=True, **options
        )
        return {
            "trials": result.summary["trials"],
            "best": sorted(path.name for path in (directory / "best").glob("*")),
            "operations": operations[0],
            "bytes": size_of(directory) + (study.stat().st_size if study.exists() else 0),
        }

    def url(self, directory: Path) -> str:
        """Return the URL of its study."""
        return f"{self.storage}:///{self.study(directory)}"

    def study(self, directory: Path) -> Path:
        """Return the file of its study, unless another storage is given."""
        return directory.with_suffix(".study")


def draw_run(rng: random.Random) -> Run:
    """Return a run whose environments are saved: a resume continues it bit for bit."""
    return Run(rng.choice(ALGORITHMS), rng.choice(PURE), rng.choice((1, 3)))


def draw_sweep(rng: random.Random, is_static: bool = False) -> Sweep:
    """Return a sweep of one worker."""
    storage = rng.choice(("sqlite", "journal"))
    return Sweep(rng.choice(SCHEDULERS), is_static, storage=storage)


def draw_work(rng: random.Random) -> Work:
    """Return a run or a sweep."""
    return rng.choice((draw_run, draw_sweep))(rng)


@functools.cache
def undisturbed(work: Work) -> tuple[dict[str, Any], float]:
    """Return how work ends undisturbed, and about how many seconds it takes once compiled."""
    directory = Path(tempfile.mkdtemp(dir=scratch_directory()))
    began = time.monotonic()
    whole = value_of(work.train, directory / "whole")
    return whole, (time.monotonic() - began) / 2


def check_same(work: Work, ended: Ended) -> None:
    """Raise unless work ended as it does undisturbed."""
    check_succeeded(ended)
    whole, _ = undisturbed(work)
    if found := differences(ended.value, whole, work.parts):
        raise Damage(Verdict.SILENTLY_WRONG, f"{work}: {found}")


def differences(found: dict[str, Any], expected: dict[str, Any], parts: tuple[str, ...]) -> str:
    """Return which parts differ and what differs first; empty if they are equal."""
    lines = []
    for part in parts:
        new, old = found[part], expected[part]
        if new == old:
            continue
        if isinstance(new, list):
            unequal = ((a, b) for a, b in zip(new, old, strict=False) if a != b)
            new, old = next(unequal, (f"{len(new)} entries", f"{len(old)}"))
        if isinstance(new, dict):
            names = sorted(name for name in {*new, *old} if new.get(name) != old.get(name))
            new, old = ({name: x.get(name) for name in names} for x in (new, old))
        lines.append(f"{part}: {new} instead of {old}")
    return "\n".join(lines)


# --- kills ---------------------------------------------------------------------------------------


def kill(rng: random.Random, work: Work, directory: Path) -> None:
    """Begin or resume work, and kill it: at a file operation, a moment, or a checkpoint's write."""
    whole, seconds = undisturbed(work)
    number = rng.choice(SIGNALS)
    if rng.random() < 0.5:
        fatal = rng.randrange(1, whole["operations"] + 1), int(number)
        check_killed(call(work.train, directory, fatal), number)
        return
    job = start(work.train, directory)
    if rng.random() < 0.5:
        job.is_running(rng.uniform(0, seconds))
    else:
        wait_for_writes(job, directory, rng.randrange(1, 6))
        job.is_running(rng.uniform(0, 0.02))
    job.signal(number)
    check_killed(job.end(), number)


def wait_for_writes(job: Job, directory: Path, count: int) -> None:
    """Wait until a job writes its checkpoint number `count`, or has ended."""
    seen: set[str] = set()
    while len(seen) < count and job.is_running(0.001):
        seen |= {path.name for path in directory.glob("checkpoints/*tmp*")}


def check_killed(ended: Ended, number: int) -> None:
    """Raise unless a job ended well, or by this signal; count the kills."""
    if ended.status != 0:
        KILLED[signal.Signals(number).name] += 1
    if ended.status not in (0, -number) and ended.error != "KeyboardInterrupt":
        raise Damage(Verdict.UNNAMED_ERROR, f"after signal {number}: {ended.tail()}")


def count_file_operations(directory: Path, limit: int = 0, number: int = 0) -> list[int]:
    """Return a counter of this process's file operations in a directory.

    Args:
      limit, number: after `limit` operations the process sends itself the signal `number`.
    """
    counter = [0]

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link"):
            return
        if not str(arguments[0]).startswith(str(directory)):
            return
        counter[0] += 1
        if counter[0] == limit:
            os.kill(os.getpid(), number)

    sys.addaudithook(audit)
    return counter


# --- what is compared ----------------------------------------------------------------------------


def digest(tree: Any) -> str:
    """Return a hash of all arrays of a tree, with their dtypes and shapes."""
    from small_algorithms import as_numpy

    sha = hashlib.sha256()
    for x in as_numpy(tree):
        sha.update(f"{x.dtype}{x.shape}".encode() + x.tobytes())
    return sha.hexdigest()


def rows_of(directory: Path) -> list[dict[str, float]]:
    """Return the rows of a run, without what depends on the machine's speed."""
    from jaxrl.training.loggers import read_jsonl

    return [
        {k: v for k, v in row.items() if k not in TIMING and not k.endswith("_per_second")}
        for row in read_jsonl(directory / "metrics.jsonl")
    ]


def size_of(directory: Path) -> int:
    """Return the bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def saved_updates(directory: Path) -> list[int]:
    """Return the updates of the finished checkpoints of a run: those with a seal."""
    names = [path.parent.name for path in directory.glob("checkpoints/*/seal.json")]
    return sorted(int(name) for name in names if name.isdigit())


def note_learners(directory: Path) -> None:
    """Note beside a run's directory each learner that it saves and each that it restores."""
    from jaxrl.training import first_state
    from jaxrl.training.loop import TrainingLoop

    restore, save, notes = first_state.restore, TrainingLoop.save, notes_of(directory)

    def note(event: str, update: int, state: Any) -> None:
        learner = digest(state._replace(simulation=None))
        with notes.open("a") as file:
            file.write(json.dumps([event, update, learner]) + "\n")

    def restore_and_note(*arguments: Any) -> Any:
        state, progress = restore(*arguments)
        note("restored", progress.update, state)
        return state, progress

    def note_and_save(loop: Any, state: Any) -> None:
        note("saved", loop.progress.update, state)
        save(loop, state)

    setattr(first_state, "restore", restore_and_note)  # noqa: B010 (its type is another one)
    setattr(TrainingLoop, "save", note_and_save)  # noqa: B010


def check_notes(directory: Path, newest: int | None) -> None:
    """Raise unless a run resumed last from this checkpoint, always with the learner saved there."""
    saved, restored = dict[int, str](), None
    notes = notes_of(directory)
    for line in notes.read_text().splitlines() if notes.exists() else []:
        event, update, learner = json.loads(line)
        if event == "restored" and learner != saved[update]:
            raise Damage(Verdict.SILENTLY_WRONG, f"another learner was restored at {update}")
        restored = update if event == "restored" else restored
        saved[update] = learner
    if newest is not None and restored != newest:
        raise Damage(Verdict.LOST, f"resumed from {restored}, not from checkpoint {newest}")


def notes_of(directory: Path) -> Path:
    """Return the file of `note_learners`."""
    return directory.with_suffix(".notes")
