"""One run on the host: chunks of updates, and between them sinks, evaluation, checkpoints, signals.

A chunk is one call of one compiled program whose number of updates is an argument, so chunks of
any length share it; its state is donated and its metrics are a buffer of fixed size.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.distributed import processes
from jaxrl.envs.host import callback
from jaxrl.rollouts.simulation import start
from jaxrl.training import curves, throughput
from jaxrl.training.checkpoint import Checkpoints
from jaxrl.training.compilation import compiler_options
from jaxrl.training.evaluate import evaluate, split
from jaxrl.training.loggers import JsonlSink, ProgressBar, Row, Sink, TensorBoardSink, read_jsonl
from jaxrl.types import Algorithm, Array, HostEnv, Metrics

MAX_CHUNK = 1024
SUMS = (
    "episode_return_sum", "episode_length_sum", "episode_count", "valid_steps", "gradient_steps"
)  # fmt: skip
"""The metrics that are added up over updates; the others are averaged."""


def chunk(
    algo: Algorithm, config: Any, state: Any, num_updates: Array | int, size: int = MAX_CHUNK
) -> tuple[Any, Metrics]:
    """`num_updates` more updates, at most `size`, a number that may be traced.

    Metrics are `[size]`, zeros past the updates done.
    """
    update = jax.jit(algo.update, inline=True)  # so that it is traced only once
    _, metrics = jax.eval_shape(update, config, state)
    rows = jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), metrics)

    def step(i: Array, carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
        state, rows = carry
        state, metrics = update(config, state)
        return state, jax.tree.map(lambda all, one: all.at[i].set(one), rows, metrics)

    return jax.lax.fori_loop(0, num_updates, step, (state, rows))


train_chunk = jax.jit(chunk, static_argnums=(0, 4), donate_argnums=2)
"""`chunk`, compiled; the state is donated."""


class Progress:
    """Totals since the first update, over all resumes; saved with each checkpoint."""

    def __init__(self) -> None:
        self.update = 0
        self.steps = 0
        self.episodes = 0
        self.seconds = 0.0
        self.compile_seconds = 0.0
        self.recent: list[list[float]] = []  # [return sum, count] of the last rows, >= 100 episodes
        self.row: dict[str, list[float]] = {}  # metrics of the updates since the last row
        self.row_seconds = 0.0

    @property
    def mean_return(self) -> float | None:
        """Over (at least) the last 100 episodes."""
        count = sum(count for _, count in self.recent)
        return sum(total for total, _ in self.recent) / count if count else None

    @property
    def row_updates(self) -> int:
        """Updates since the last row."""
        return len(next(iter(self.row.values()), []))

    def count(self, metrics: dict[str, np.ndarray], seconds: float) -> None:
        """Take in some updates, metrics `[updates]`, which took so long."""
        self.update += len(metrics["valid_steps"])
        self.steps += int(metrics["valid_steps"].sum())
        self.episodes += int(metrics["episode_count"].sum())
        self.seconds += seconds
        self.row_seconds += seconds
        for name, values in metrics.items():
            self.row.setdefault(name, []).extend(values.astype(np.float64).tolist())

    def end_row(self) -> tuple[Row, int, float]:
        """The row of the updates since the last one; how many they were, and their seconds."""
        updates, seconds = self.row_updates, self.row_seconds
        columns = {name: np.array(values) for name, values in self.row.items()}
        row = {name: float(x.sum() if name in SUMS else x.mean()) for name, x in columns.items()}
        if row["episode_count"]:
            self.recent.append([row["episode_return_sum"], row["episode_count"]])
        while self.recent and sum(n for _, n in self.recent) - self.recent[0][1] >= 100:
            self.recent.pop(0)
        self.row, self.row_seconds = {}, 0.0
        return row, updates, seconds


def public_row(row: Row, progress: Progress, seconds: float) -> Row:
    """A row as sinks get it: totals, means over episodes, losses."""
    count = row["episode_count"]
    means = {}
    if count:
        means = {
            "episode_return": row["episode_return_sum"] / count,
            "episode_length": row["episode_length_sum"] / count,
        }
    return {
        "update": progress.update,
        "steps": progress.steps,
        "seconds": round(progress.seconds, 3),
        "steps_per_second": round(row["valid_steps"] / max(seconds, 1e-9), 1),
        "episode_count": count,
        **means,
        **{name: value for name, value in row.items() if name not in SUMS},
    }


class Interrupt:
    """A context in which the first SIGINT or SIGTERM only sets `requested`.

    The second one does what it would have done. Outside the main thread, where Python allows no
    handlers, nothing changes.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._request) for s in self.SIGNALS}
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for s, handler in self._previous.items():
            signal.signal(s, handler)

    def __exit__(self, *exception: object) -> None:
        self._restore()


MAX_SAVING_SHARE = 0.05
"""Of the time, for checkpoints: they become rarer if writing one takes long."""
EVALUATION_SEED = 2**31 - 1
SUMMARY = "summary.json"
"""What a run leaves at its end."""


class RunResult(NamedTuple):
    """What `run` returns."""

    state: Any
    summary: dict[str, Any]
    interrupted: bool
    run_dir: Path | None


class LoopSettings(NamedTuple):
    """How a run is cut up; see `run`."""

    num_updates: int
    steps_per_update: int
    log_every: int
    evaluate_at: frozenset[int]
    eval_episodes: int
    chunk_updates: int | None
    chunk_seconds: float
    checkpoint_seconds: float


class Runner:
    """One call of `run`."""

    def __init__(
        self,
        algo: Algorithm,
        config: Any,
        seed: int,
        init: jax.stages.Lowered,
        settings: LoopSettings,
        run_dir: Path | None,
        sinks: list[Sink],
        progress_bar: bool,
    ):
        """`run_dir` is None where nothing is kept; logs are the first process's alone."""
        self.algo, self.config, self.seed, self.init = algo, config, seed, init
        self.settings, self.run_dir, self.sinks = settings, run_dir, sinks
        self.progress = Progress()
        self.interrupted = False
        self.evaluation: dict[str, float] = {}
        self.bar = ProgressBar(settings.num_updates * settings.steps_per_update, progress_bar)
        self.checkpoints = (
            None if run_dir is None else Checkpoints(run_dir / "checkpoints", together=True)
        )

    def run(self) -> RunResult:
        state = self.start()
        if self.progress.update < self.settings.num_updates:
            state = self.train(state)
        return RunResult(state, self.finish(), self.interrupted, self.run_dir)

    def start(self) -> Any:
        """The first state, or the saved one."""
        self.bar.say("initializing")
        key = jax.random.key(self.seed)
        saved = None if self.checkpoints is None else self.checkpoints.latest()
        if saved is not None and not self.algo.env.checkpointable:
            key = jax.random.fold_in(key, saved)  # other episodes than those before
        state = self.init.compile()(self.config, key)
        if jax.process_count() > 1 and all(x.is_fully_addressable for x in jax.tree.leaves(state)):
            raise ValueError(
                f"{jax.process_count()} processes are joined, but {self.algo.name!r} trains on "
                "one's devices alone; spread it over those of all by jaxrl.distributed.spread.spread"
            )
        if self.checkpoints is not None and saved is not None:
            state = self.restore(self.checkpoints, state)
        if self.run_dir is not None and processes.is_first():
            update = self.progress.update
            self.sinks += [
                JsonlSink(self.run_dir / "metrics.jsonl", update),
                TensorBoardSink(self.run_dir / "tensorboard", self.progress.steps),
            ]
        return state

    def restore(self, checkpoints: Checkpoints, state: Any) -> Any:
        """The saved state, laid out as this run's is, on one device or several."""
        whole = self.algo.env.checkpointable
        saved, progress = checkpoints.restore(state, whole)
        vars(self.progress).update(progress)
        self.bar.announce(
            f"resumed after update {self.progress.update:,}"
            + ("" if whole else "; the environments start new episodes")
        )
        return saved if whole else saved._replace(simulation=state.simulation)

    def train(self, state: Any) -> Any:
        """All chunks."""
        if self.run_dir is not None and processes.is_first():
            (self.run_dir / SUMMARY).unlink(missing_ok=True)  # of the shorter run that goes on
        self.bar.say("compiling")
        began = time.perf_counter()
        lowered = train_chunk.lower(self.algo, self.config, state, jnp.int32(1))
        compiled = lowered.compile(compiler_options(self.algo, self.config))
        self.progress.compile_seconds += time.perf_counter() - began
        self.bar.announce(f"compiled in {time.perf_counter() - began:.1f} s")
        self.bar.say("training")
        seconds_per_update: float | None = None
        saved_at, save_every = time.perf_counter(), self.settings.checkpoint_seconds
        with Interrupt() as interrupt:
            while self.progress.update < self.settings.num_updates:
                if processes.any_of(interrupt.requested):
                    break
                updates = int(processes.agree(np.int32(self.chunk_length(seconds_per_update))))
                began, host_time = time.perf_counter(), throughput.host_time(state)
                state, metrics = compiled(self.config, state, jnp.int32(updates))
                metrics = jax.device_get(metrics)
                elapsed = time.perf_counter() - began
                seconds_per_update = elapsed / updates
                waits = throughput.shares(host_time, throughput.host_time(state))
                self.log(metrics, updates, elapsed, waits)
                if self.progress.update in self.settings.evaluate_at and processes.is_first():
                    self.evaluate(processes.replicated_part(state))
                if processes.agree(np.bool_(time.perf_counter() - saved_at >= save_every)):
                    began = time.perf_counter()
                    self.save(state)
                    saved_at = time.perf_counter()
                    # A large replay takes a while to write.
                    if self.settings.checkpoint_seconds:
                        save_every = max(save_every, (saved_at - began) / MAX_SAVING_SHARE)
            self.interrupted = self.progress.update < self.settings.num_updates
        self.save(state)
        return state

    def chunk_length(self, seconds_per_update: float | None) -> int:
        """Updates of the next chunk, at most up to the next evaluation."""
        settings, update = self.settings, self.progress.update
        if settings.chunk_updates is not None:
            length = settings.chunk_updates
        elif seconds_per_update is None:
            length = 1
        else:
            length = int(settings.chunk_seconds / max(seconds_per_update, 1e-6))
        if length >= settings.log_every:  # whole rows, where one is short
            length -= (self.progress.row_updates + length) % settings.log_every
        stops = [*(at for at in settings.evaluate_at if at > update), settings.num_updates]
        return min(max(length, 1), MAX_CHUNK, min(stops) - update)

    def log(self, metrics: dict[str, np.ndarray], updates: int, elapsed: float, waits: Row) -> None:
        """Take in a chunk; rows are over `log_every` updates, or up to an evaluation."""
        progress, settings = self.progress, self.settings
        done = 0
        while done < updates:
            stop = min(done + settings.log_every - progress.row_updates, updates)
            part = {name: values[done:stop] for name, values in metrics.items()}
            losses = part.get("loss", np.zeros(1))
            if not np.isfinite(losses).all():
                raise FloatingPointError(
                    f"the loss is {losses[~np.isfinite(losses)][0]} within update "
                    f"{progress.update + stop - done} of {self.algo.name} on {self.algo.env.id}; "
                    "a lower learning rate or gradient norm may help. Checkpoints before it are "
                    "kept"
                )
            progress.count(part, elapsed * (stop - done) / updates)
            done = stop
            due = progress.update in settings.evaluate_at | {settings.num_updates}
            if progress.row_updates == settings.log_every or due:
                row, of_row, seconds = progress.end_row()
                rates = throughput.rates(row, of_row * settings.steps_per_update, seconds)
                self.write(public_row(row, progress, seconds) | rates | waits)
        of_chunk = {name: float(x[:updates].sum()) for name, x in metrics.items() if name in SUMS}
        rates = throughput.rates(of_chunk, updates * settings.steps_per_update, elapsed)
        self.bar.advance(
            progress.update * settings.steps_per_update,
            of_chunk["valid_steps"] / elapsed,
            progress.mean_return,
            throughput.line(rates | waits),
        )

    def write(self, row: Row) -> None:
        for sink in self.sinks:
            sink.write(row)

    def evaluate(self, state: Any) -> None:
        """Whole episodes on separate environments with fixed seeds."""
        self.bar.say("evaluating")
        settings = self.settings
        num_envs, episodes_each = split(settings.eval_episodes)
        env = self.algo.env.for_evaluation(num_envs)
        key, simulation = jax.random.key(EVALUATION_SEED), None
        if isinstance(env, HostEnv):  # begun here, so that the simulators can be closed again
            core = self.algo.initial_core(self.config, num_envs)
            simulation = jax.jit(start, static_argnums=0)(env, key, core)
        scores = jax.jit(evaluate, static_argnums=(0, 3, 5))(
            self.algo, self.config, state, env, key, episodes_each, simulation=simulation
        )
        returns = np.asarray(scores.episode_return)[: settings.eval_episodes]
        lengths = np.asarray(scores.episode_length)[: settings.eval_episodes]
        if simulation is not None:
            callback.release(simulation.env_state)
        ended = np.isfinite(returns)
        if not ended.all():
            self.bar.announce(f"{(~ended).sum()} of {len(ended)} evaluated episodes did not end")
        if ended.any():
            self.evaluation = {
                "eval_return": float(returns[ended].mean()),
                "eval_return_std": float(returns[ended].std()),
                "eval_episode_length": float(lengths[ended].mean()),
            }
            progress = self.progress
            self.write({"update": progress.update, "steps": progress.steps} | self.evaluation)
        self.bar.say("training")

    def save(self, state: Any) -> None:
        """A checkpoint, unless there is none to be or it is there."""
        update, whole = self.progress.update, self.algo.env.checkpointable
        if self.checkpoints is not None and self.checkpoints.latest() != update:
            self.checkpoints.save(update, state, vars(self.progress), whole)

    def finish(self) -> dict[str, Any]:
        """Summary and curve."""
        progress = self.progress
        summary = {
            "algorithm": self.algo.name,
            "env": self.algo.env.id,
            "updates": progress.update,
            "valid_steps": progress.steps,
            "seconds": progress.seconds,
            "steps_per_second": progress.steps / progress.seconds if progress.seconds else None,
            "compile_seconds": progress.compile_seconds,
            "episodes": progress.episodes,
            "mean_return": progress.mean_return,
            **{"eval_return": None, "eval_return_std": None, **self.evaluation},
            "interrupted": self.interrupted,
        }
        if self.run_dir is not None and processes.is_first():
            if not self.evaluation:
                evaluated = [
                    row
                    for row in read_jsonl(self.run_dir / "metrics.jsonl")
                    if "eval_return" in row
                ]
                if evaluated:
                    summary |= {k: v for k, v in evaluated[-1].items() if k.startswith("eval_")}
            text = json.dumps(summary, indent=2) + "\n"
            (self.run_dir / SUMMARY).write_text(text)
            curves.plot_run(self.run_dir, f"{self.algo.name} on {self.algo.env.id}")
        return summary

    def close(self) -> None:
        self.bar.close()
        for sink in self.sinks:
            sink.close()
        if self.checkpoints is not None:
            self.checkpoints.close()
