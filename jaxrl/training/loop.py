"""The life of one run, from its first or saved state to its summary.

The host calls one compiled program again and again. Each call does a chunk of updates; between
chunks the host writes rows, evaluates, saves checkpoints and looks for signals. The number of
updates is an argument of the program, so chunks of any length share it. The state is donated and
the metrics fill a buffer of fixed size, so memory does not grow with the length of a run.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.distributed import processes
from jaxrl.distributed.processes import Interrupt
from jaxrl.envs.host.callback import closing_on_error
from jaxrl.envs.host.pools import HostTime
from jaxrl.files import schema
from jaxrl.files.rows import read as read_rows
from jaxrl.training.compilation import compile_chunk
from jaxrl.training.curve import plot_run
from jaxrl.training.evaluate import agent_on_one_device
from jaxrl.training.fine_tuning import Learned
from jaxrl.training.first_state import first_state
from jaxrl.training.loggers import JsonlSink, Sink, TensorBoardSink, read_jsonl
from jaxrl.training.progress.bar import ProgressBar
from jaxrl.training.progress.divergence import check_losses, check_parameters
from jaxrl.training.progress.rows import NEEDED, Progress, Row
from jaxrl.training.progress.schedule import LoopSettings, chunk_length
from jaxrl.training.progress.throughput import (
    NO_TIME,
    simulator_time,
    throughput_text,
    waiting_shares,
)
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.best_agent import BestAgent
from jaxrl.training.run_dir.checkpoint import Checkpoints
from jaxrl.training.run_dir.directory import SUMMARY, check_can_begin
from jaxrl.training.run_evaluation import EVALUATED, RunEvaluator
from jaxrl.types import Algorithm

Callback = Callable[[int, Any, Row], None]
"""`f(update, state, row)`, called between two chunks of updates; `row` is the newest one, with
the scores of an evaluation that followed it."""
MAX_SAVING_SHARE = 0.05
"""Share of the time that goes into checkpoints, at most, unless one after every chunk is wanted."""


class StopRun(Exception):
    """The end of a run, raised by one of its callbacks: an evaluation follows, if there are any.

    A resume of the run trains on.
    """


class TrainingLoop:
    """The loop of one run, with the files and the progress bar that it keeps open."""

    def __init__(
        self,
        algo: Algorithm,
        config: Any,
        settings: LoopSettings,
        run_dir: Path | None,
        sinks: Sequence[Sink],
        callbacks: Sequence[Callback],
        progress_bar: bool,
        seed: int,
    ):
        self.algo, self.config, self.settings, self.seed = algo, config, settings, seed
        self.callbacks, self.newest_row = callbacks, Row()
        self.run_dir, self.sinks = run_dir, list(sinks) if processes.is_first() else []
        self.own_sinks: list[Sink] = []
        self.progress = Progress()
        self.evaluation: Row = {}  # of the newest evaluation
        self.row_simulated = NO_TIME  # since the last row
        self.lacks_evaluation = False
        """Whether the run resumes from a checkpoint whose evaluation was stopped."""
        self.rows: JsonlSink | None = None
        self.checkpoints: Checkpoints | None = None
        self.best: BestAgent | None = None
        self.identity: dict[str, Any] = {}
        if run_dir is not None:
            self.identity = manifests.identity(manifests.read(run_dir))
            self.checkpoints = Checkpoints(run_dir / "checkpoints", self.identity, together=True)
            if self.checkpoints.latest() is None:
                check_can_begin(run_dir)
        self.bar = ProgressBar(
            settings.num_updates * settings.steps_per_update, progress_bar and processes.is_first()
        )
        self.evaluator = RunEvaluator(algo, config, settings, seed, self.bar)

    def run(
        self, init: jax.stages.Lowered, learned: Learned | None
    ) -> tuple[Any, dict[str, Any], bool]:
        """Train up to the last update or a signal; return the fields of a `RunResult`.

        An error closes the environments on the host, since the state is lost.

        Args:
          init: the algorithm's, lowered.
          learned: what a new state begins with.
        """
        self.bar.say("initializing")
        state, self.progress = first_state(
            self.algo, self.config, init, self.seed, self.run_dir, self.checkpoints, learned,
            self.bar.announce,
        )  # fmt: skip
        if self.progress.update:
            self.bar.begin_at(self.progress.update * self.settings.steps_per_update)
        interrupted = False
        with closing_on_error(state):
            if self.run_dir is not None:
                processes.call_on_first(self.open_files)
            is_due = bool(processes.broadcast(np.bool_(self.lacks_evaluation)))
            if is_due or self.progress.update < self.settings.num_updates:
                state, interrupted = self.train(state, is_due)
            summary = self.summarize(interrupted)
        return state, summary, interrupted

    @property
    def agent_name(self) -> str:
        """Return the algorithm and the environment, for errors and titles."""
        return f"{self.algo.name} on {self.algo.env.id}"

    def open_files(self) -> None:
        """Open the files of the run directory that take rows; drop rows after the progress."""
        assert self.run_dir is not None
        assert self.checkpoints is not None
        path, record = self.run_dir / "metrics.jsonl", self.checkpoints.rows
        self.rows = JsonlSink(path, self.progress.update, record)
        tensorboard = TensorBoardSink(self.run_dir / "tensorboard", self.progress.steps)
        self.own_sinks = [self.rows, tensorboard]
        self.sinks += self.own_sinks
        if self.settings.is_evaluated(self.progress.update):
            newest = [row for row in read_rows(path).rows if row["update"] == self.progress.update]
            self.lacks_evaluation = not any({*EVALUATED} & {*row} for row in newest)
            for row in newest:
                self.newest_row |= row  # callbacks get both, which are of the same update
        if self.settings.num_evaluations:
            evaluated = self.progress.update - self.lacks_evaluation
            self.best = BestAgent(self.run_dir, self.identity, evaluated)

    def train(self, state: Any, is_due: bool) -> tuple[Any, bool]:
        """Do what is left and save; return the state, and whether a signal left something undone.

        A callback may end it before its last update, by `StopRun`.

        Args:
          is_due: whether it begins with an evaluation.
        """
        settings, progress = self.settings, self.progress
        if self.run_dir is not None and processes.is_first():
            (self.run_dir / SUMMARY).unlink(missing_ok=True)  # one of a shorter run is outdated
        program = self.compile(state) if progress.update < settings.num_updates else None
        self.bar.say("training")
        seconds_per_update: float | None = None
        saved_at, save_every = time.perf_counter(), settings.checkpoint_seconds
        is_stopped = False
        with Interrupt() as interrupt:
            while is_due or (progress.update < settings.num_updates and not is_stopped):
                if processes.any_process(interrupt.requested):
                    break
                if not is_due:
                    assert program is not None
                    length = chunk_length(settings, progress, seconds_per_update)
                    evaluate_at = settings.next_evaluation(progress.update)
                    updates = int(processes.broadcast(np.int32(length)))
                    state, seconds = self.do_chunk(program, state, updates)
                    seconds_per_update = seconds / updates
                    is_due = progress.update == evaluate_at
                with processes.failing_together(Exception):
                    was_due = is_due
                    if is_due and not self.evaluate(state, interrupt):
                        break  # a resume repeats it
                    is_due = False
                    if not is_stopped and self.callbacks:
                        is_stopped = processes.any_process(self.call_callbacks(state))
                        is_due = is_stopped and settings.num_evaluations > 0 and not was_due
                if processes.broadcast(np.bool_(time.perf_counter() - saved_at >= save_every)):
                    began = time.perf_counter()
                    self.save(state)
                    saved_at = time.perf_counter()
                    if settings.checkpoint_seconds:  # a large replay takes a while to write
                        slow = (saved_at - began) / MAX_SAVING_SHARE
                        save_every = max(settings.checkpoint_seconds, slow)
            self.save(state)  # here, where the first signal does not end it
            if self.checkpoints is not None:
                self.checkpoints.latest()  # waits for its seal, by which the rows are verified
        return state, is_due or (progress.update < settings.num_updates and not is_stopped)

    def call_callbacks(self, state: Any) -> bool:
        """Call all callbacks; return whether one of them stops the run."""
        is_stopped = False
        for callback in self.callbacks:
            try:
                answer = callback(self.progress.update, state, self.newest_row)
            except StopRun:
                is_stopped = True
                continue
            if answer is not None:
                raise ValueError(
                    f"a callback must return None, got {answer!r}; to stop the run, it raises "
                    "jaxrl.StopRun"
                )
        return is_stopped

    def compile(self, state: Any) -> jax.stages.Compiled:
        """Return the program of a chunk."""
        self.bar.say("compiling")
        began = time.perf_counter()
        program = compile_chunk(self.algo, self.config, state)
        _, metrics = jax.tree.unflatten(program.out_tree, range(program.out_tree.num_leaves))
        if lacking := sorted(NEEDED - metrics.keys()):
            raise ValueError(
                f"the metrics of {self.algo.name}'s update lack {', '.join(lacking)}; add those of "
                "jaxrl.rollouts.rollout.episode_metrics"
            )
        seconds = time.perf_counter() - began
        self.progress.compile_seconds += seconds
        self.bar.announce(f"compiled in {seconds:.1f} s")
        return program

    def do_chunk(self, program: jax.stages.Compiled, state: Any, updates: int) -> tuple[Any, float]:
        """Do a chunk of updates and log it; return the state, and the seconds of the updates."""
        began, before = time.perf_counter(), simulator_time(state)
        state, metrics = program(self.config, state, jnp.int32(updates))
        metrics = {name: x[:updates] for name, x in jax.device_get(metrics).items()}
        seconds = time.perf_counter() - began
        after = simulator_time(state)
        self.log(metrics, seconds, HostTime(*map(operator.sub, after, before)))
        return state, seconds

    def log(self, metrics: dict[str, np.ndarray], seconds: float, simulated: HostTime) -> None:
        """Write the rows that a chunk with metrics `[updates]` completes; show it in the bar."""
        progress, settings = self.progress, self.settings
        updates, done = len(metrics["valid_steps"]), 0
        row_after = (settings.next_evaluation(progress.update), settings.num_updates)
        while done < updates:
            stop = min(done + settings.log_every - progress.row_updates, updates)
            part = {name: values[done:stop] for name, values in metrics.items()}
            check_losses(part, progress.update, self.agent_name)
            share = (stop - done) / updates
            progress.add(part, seconds * share)
            self.row_simulated = HostTime(
                *(a + share * b for a, b in zip(self.row_simulated, simulated, strict=True))
            )
            done = stop
            if progress.row_updates == settings.log_every or progress.update in row_after:
                waits = waiting_shares(self.row_simulated)
                self.row_simulated = NO_TIME
                self.write(progress.end_row(settings.steps_per_update) | waits)
        self.bar.advance(
            progress.update * settings.steps_per_update,
            float(metrics["valid_steps"].sum()) / seconds,
            progress.mean_return,
            throughput_text(metrics, seconds, waiting_shares(simulated)),
        )

    def evaluate(self, state: Any, interrupt: Interrupt) -> bool:
        """Evaluate the agent, write its scores, and keep it if it is the best one.

        Returns:
          False if a signal stopped it.
        """
        self.bar.say("evaluating")
        agent = agent_on_one_device(state)
        row = self.evaluator(agent, self.progress, interrupt)
        self.bar.say("training")
        if row is None:
            return False
        if "eval_return" in row:
            self.evaluation = row
            if self.best is not None:
                self.best.offer(self.progress.update, agent, row["eval_return"])
                if self.lacks_evaluation:
                    self.best.save()  # the checkpoint of its update exists
        self.lacks_evaluation = False
        trained = self.newest_row
        self.write({"update": self.progress.update, "steps": self.progress.steps} | row)
        self.newest_row = trained | self.newest_row
        return True

    def write(self, row: Row) -> None:
        """Give a row to every sink."""
        self.newest_row = row
        with processes.failing_together(Exception):
            for sink in self.sinks:
                sink.write(dict(row))  # what one of them adds is not for the others

    def save(self, state: Any) -> None:
        """Save a checkpoint, unless the run keeps none or has this one already.

        Raises:
          FloatingPointError: if a parameter is not finite, so that no checkpoint has such ones.
        """
        check_parameters(state, self.progress.update, self.agent_name)
        update, whole = self.progress.update, self.algo.env.checkpointable
        if self.run_dir is not None and not (self.run_dir / manifests.NAME).exists():
            raise FileNotFoundError(
                f"{self.run_dir} was moved or deleted during the run, which can save nothing more; "
                "if it was moved, resume it where it is now"
            )
        if self.checkpoints is not None and self.checkpoints.latest() != update:
            rows = None if self.rows is None else self.rows.record()
            if self.best is not None:
                self.best.save()
            self.checkpoints.save(update, state, vars(self.progress), whole, rows)

    def summarize(self, interrupted: bool) -> dict[str, Any]:
        """Return the summary; write it and the learning curve into the run directory."""
        evaluation = self.evaluation
        if self.run_dir is not None and not evaluation:  # a resumed run's may be of before
            rows = read_jsonl(self.run_dir / "metrics.jsonl")
            evaluation = next((row for row in reversed(rows) if "eval_return" in row), {})
        summary = {
            "algorithm": self.algo.name,
            "env": self.algo.env.id,
            **self.progress.totals(),
            "eval_return": None,
            "eval_return_std": None,
            **{name: value for name, value in evaluation.items() if name.startswith("eval_")},
            "interrupted": interrupted,
        }
        if self.run_dir is not None and processes.is_first():
            schema.write(self.run_dir / SUMMARY, summary)
            plot_run(self.run_dir, self.agent_name)
        return summary

    def close(self) -> None:
        """Close the files and the progress bar, the others too if one cannot be closed."""
        with contextlib.ExitStack() as stack:
            for checkpoints in (self.checkpoints, self.best):
                if checkpoints is not None:
                    stack.callback(checkpoints.close)
            for sink in reversed(self.own_sinks):
                stack.callback(sink.close)
            stack.callback(self.bar.close)
