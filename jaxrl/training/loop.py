"""The life of one run, from its first or saved state to its summary.

The host calls one compiled program again and again. Each call does a chunk of updates; between
chunks the host writes rows, evaluates, saves checkpoints and looks for signals. The number of
updates is an argument of the program, so chunks of any length share it. The state is donated and
the metrics fill a buffer of fixed size, so memory does not grow with the length of a run.
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
from jaxrl.training.checkpoint import Checkpoints
from jaxrl.training.compilation import compiler_options
from jaxrl.training.evaluate import evaluate_separately
from jaxrl.training.loggers import ProgressBar, Sink, open_sinks, plot_run, read_jsonl
from jaxrl.training.progress import Progress, Row, simulator_time, throughput_text, waiting_shares
from jaxrl.types import Algorithm, Array, Metrics

MAX_CHUNK = 1024
"""Updates in one call of the compiled program, at most."""
MAX_SAVING_SHARE = 0.05
"""Share of the time that goes into checkpoints, at most, unless one after every chunk is wanted."""
SUMMARY = "summary.json"


def run_chunk(
    algo: Algorithm, config: Any, state: Any, num_updates: Array | int, size: int = MAX_CHUNK
) -> tuple[Any, Metrics]:
    """Do `num_updates` updates, at most `size`; the number may be traced.

    Returns:
      The state, and metrics `[size]`, zeros past the updates done.
    """
    update = jax.jit(algo.update, inline=True)  # so that it is traced only once
    _, metrics = jax.eval_shape(update, config, state)
    rows = jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), metrics)

    def step(i: Array, carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
        state, rows = carry
        state, metrics = update(config, state)
        return state, jax.tree.map(lambda all, one: all.at[i].set(one), rows, metrics)

    return jax.lax.fori_loop(0, num_updates, step, (state, rows))


train_chunk = jax.jit(run_chunk, static_argnums=(0, 4), donate_argnums=2)
"""`run_chunk`, compiled; the state is donated."""


def compile_chunk(algo: Algorithm, config: Any, state: Any) -> jax.stages.Compiled:
    """Return `train_chunk` of an algorithm, compiled: call it with config, state and int32."""
    lowered = train_chunk.lower(algo, config, state, jnp.int32(1))
    return lowered.compile(compiler_options(algo, config))


class RunResult(NamedTuple):
    """The outcome of `jaxrl.run`."""

    state: Any
    """The training state after the last update."""
    summary: dict[str, Any]
    """The content of `summary.json`."""
    interrupted: bool
    """Whether a signal ended the run before its last update."""
    run_dir: Path | None


class LoopSettings(NamedTuple):
    """The lengths of a run and of its parts; `jaxrl.run` explains them."""

    num_updates: int
    steps_per_update: int
    log_every: int
    evaluate_at: frozenset[int]
    """The updates after which to evaluate."""
    eval_episodes: int
    chunk_updates: int | None
    chunk_seconds: float
    checkpoint_seconds: float


class TrainingLoop:
    """The loop of one run, with the files and the progress bar that it keeps open."""

    def __init__(
        self,
        algo: Algorithm,
        config: Any,
        settings: LoopSettings,
        run_dir: Path | None,
        sinks: list[Sink],
        progress_bar: bool,
    ):
        self.algo, self.config, self.settings = algo, config, settings
        self.run_dir, self.sinks = run_dir, sinks
        self.progress = Progress()
        self.evaluation: Row = {}  # of the newest evaluation
        self.bar = ProgressBar(settings.num_updates * settings.steps_per_update, progress_bar)
        self.checkpoints = (
            None if run_dir is None else Checkpoints(run_dir / "checkpoints", together=True)
        )

    def run(self, init: jax.stages.Lowered, seed: int) -> RunResult:
        """Train up to the last update or a signal; `init` is the algorithm's, lowered."""
        state, interrupted = self.first_state(init, seed), False
        if self.run_dir is not None and processes.is_first():
            self.sinks += open_sinks(self.run_dir, self.progress.update, self.progress.steps)
        if self.progress.update < self.settings.num_updates:
            state, interrupted = self.train(state)
            self.save(state)
        return RunResult(state, self.summarize(interrupted), interrupted, self.run_dir)

    def first_state(self, init: jax.stages.Lowered, seed: int) -> Any:
        """Return the initial state, or the one of the newest checkpoint."""
        self.bar.say("initializing")
        key = jax.random.key(seed)
        saved_update = None if self.checkpoints is None else self.checkpoints.latest()
        if saved_update is not None and not self.algo.env.checkpointable:
            key = jax.random.fold_in(key, saved_update)  # so that new episodes differ from old ones
        state = init.compile()(self.config, key)
        if jax.process_count() > 1 and all(x.is_fully_addressable for x in jax.tree.leaves(state)):
            raise ValueError(
                f"{jax.process_count()} processes are joined, but {self.algo.name!r} trains on "
                "the devices of one; spread it over the devices of all by "
                "jaxrl.distributed.spread.spread"
            )
        return state if saved_update is None else self.restore(state)

    def restore(self, state: Any) -> Any:
        """Return the saved state on the devices of `state`; restore the progress."""
        assert self.checkpoints is not None
        whole = self.algo.env.checkpointable
        saved, progress = self.checkpoints.restore(state, whole)
        self.progress = Progress(**progress)
        self.bar.announce(
            f"resumed after update {self.progress.update:,}"
            + ("" if whole else "; the environments start new episodes")
        )
        return saved if whole else saved._replace(simulation=state.simulation)

    def train(self, state: Any) -> tuple[Any, bool]:
        """Do the remaining updates; return the state, and whether a signal interrupted them."""
        settings, progress = self.settings, self.progress
        if self.run_dir is not None and processes.is_first():
            (self.run_dir / SUMMARY).unlink(missing_ok=True)  # one of a shorter run is outdated
        program = self.compile(state)
        self.bar.say("training")
        seconds_per_update: float | None = None
        saved_at, save_every = time.perf_counter(), settings.checkpoint_seconds
        with Interrupt() as interrupt:
            while progress.update < settings.num_updates:
                if processes.any_process(interrupt.requested):
                    return state, True
                length = chunk_length(settings, progress, seconds_per_update)
                updates = int(processes.broadcast(np.int32(length)))
                state, seconds = self.do_chunk(program, state, updates)
                seconds_per_update = seconds / updates
                if progress.update in settings.evaluate_at and processes.is_first():
                    self.evaluate(processes.replicated_part(state))
                if processes.broadcast(np.bool_(time.perf_counter() - saved_at >= save_every)):
                    began = time.perf_counter()
                    self.save(state)
                    saved_at = time.perf_counter()
                    if settings.checkpoint_seconds:  # a large replay takes a while to write
                        save_every = max(save_every, (saved_at - began) / MAX_SAVING_SHARE)
        return state, False

    def compile(self, state: Any) -> jax.stages.Compiled:
        """Return the program of a chunk."""
        self.bar.say("compiling")
        began = time.perf_counter()
        program = compile_chunk(self.algo, self.config, state)
        seconds = time.perf_counter() - began
        self.progress.compile_seconds += seconds
        self.bar.announce(f"compiled in {seconds:.1f} s")
        return program

    def do_chunk(self, program: jax.stages.Compiled, state: Any, updates: int) -> tuple[Any, float]:
        """Do a chunk of updates and log it; return the state, and the seconds of the updates."""
        began, simulated = time.perf_counter(), simulator_time(state)
        state, metrics = program(self.config, state, jnp.int32(updates))
        metrics = {name: x[:updates] for name, x in jax.device_get(metrics).items()}
        seconds = time.perf_counter() - began
        self.log(metrics, seconds, waiting_shares(simulated, simulator_time(state)))
        return state, seconds

    def log(self, metrics: dict[str, np.ndarray], seconds: float, waits: Row) -> None:
        """Write the rows that a chunk completes, and show the chunk in the progress bar.

        Args:
          metrics: `[updates]` of the chunk.
          seconds: time that the chunk took.
          waits: `waiting_shares` of the chunk.
        """
        progress, settings = self.progress, self.settings
        updates, done = len(metrics["valid_steps"]), 0
        row_after = settings.evaluate_at | {settings.num_updates}
        while done < updates:
            stop = min(done + settings.log_every - progress.row_updates, updates)
            part = {name: values[done:stop] for name, values in metrics.items()}
            self.check_losses(part)
            progress.add(part, seconds * (stop - done) / updates)
            done = stop
            if progress.row_updates == settings.log_every or progress.update in row_after:
                self.write(progress.end_row(settings.steps_per_update) | waits)
        self.bar.advance(
            progress.update * settings.steps_per_update,
            float(metrics["valid_steps"].sum()) / seconds,
            progress.mean_return,
            throughput_text(metrics, seconds, waits),
        )

    def check_losses(self, metrics: dict[str, np.ndarray]) -> None:
        """Raise `FloatingPointError` if a loss of the next updates is not finite."""
        losses = metrics.get("loss", np.zeros(1))
        if not np.isfinite(losses).all():
            last = self.progress.update + len(losses)
            raise FloatingPointError(
                f"the loss is {losses[~np.isfinite(losses)][0]} within update {last} of "
                f"{self.algo.name} on {self.algo.env.id}; a lower learning rate or gradient norm "
                "may help. Checkpoints before it are kept"
            )

    def evaluate(self, state: Any) -> None:
        """Evaluate on separate environments and write the scores."""
        self.bar.say("evaluating")
        scores = evaluate_separately(self.algo, self.config, state, self.settings.eval_episodes)
        ended = np.isfinite(scores.episode_return)
        if not ended.all():
            self.bar.announce(f"{(~ended).sum()} of {len(ended)} evaluated episodes did not end")
        if ended.any():
            self.evaluation = {
                "eval_return": float(scores.episode_return[ended].mean()),
                "eval_return_std": float(scores.episode_return[ended].std()),
                "eval_episode_length": float(scores.episode_length[ended].mean()),
            }
            now = {"update": self.progress.update, "steps": self.progress.steps}
            self.write(now | self.evaluation)
        self.bar.say("training")

    def write(self, row: Row) -> None:
        """Give a row to every sink."""
        for sink in self.sinks:
            sink.write(row)

    def save(self, state: Any) -> None:
        """Save a checkpoint, unless the run keeps none or has this one already."""
        update, whole = self.progress.update, self.algo.env.checkpointable
        if self.checkpoints is not None and self.checkpoints.latest() != update:
            self.checkpoints.save(update, state, vars(self.progress), whole)

    def summarize(self, interrupted: bool) -> dict[str, Any]:
        """Return the summary; write it and the learning curve into the run directory."""
        progress, evaluation = self.progress, self.evaluation
        run_dir = self.run_dir if processes.is_first() else None
        if run_dir is not None and not evaluation:
            rows = read_jsonl(run_dir / "metrics.jsonl")
            evaluated = [row for row in rows if "eval_return" in row]
            evaluation = evaluated[-1] if evaluated else {}
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
            "eval_return": None,
            "eval_return_std": None,
            **{name: value for name, value in evaluation.items() if name.startswith("eval_")},
            "interrupted": interrupted,
        }
        if run_dir is not None:
            (run_dir / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
            plot_run(run_dir, f"{self.algo.name} on {self.algo.env.id}")
        return summary

    def close(self) -> None:
        """Close the files and the progress bar."""
        self.bar.close()
        for sink in self.sinks:
            sink.close()
        if self.checkpoints is not None:
            self.checkpoints.close()


def chunk_length(
    settings: LoopSettings, progress: Progress, seconds_per_update: float | None
) -> int:
    """Return the number of updates of the next chunk, at most up to the next evaluation.

    Args:
      seconds_per_update: as the last chunk took; None before the first.
    """
    if settings.chunk_updates is not None:
        length = settings.chunk_updates
    elif seconds_per_update is None:
        length = 1
    else:
        length = int(settings.chunk_seconds / max(seconds_per_update, 1e-6))
    if length >= settings.log_every:  # end with a row
        length -= (progress.row_updates + length) % settings.log_every
    evaluations = (at for at in settings.evaluate_at if at > progress.update)
    stop = min([*evaluations, settings.num_updates])
    return min(max(length, 1), MAX_CHUNK, stop - progress.update)


class Interrupt:
    """A context in which the first SIGINT or SIGTERM sets `requested` and does nothing else.

    The second one does what it would do without this context. Python allows handlers in the main
    thread only; in other threads signals do what they always do.
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
