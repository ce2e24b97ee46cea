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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.distributed import processes
from jaxrl.distributed.processes import Interrupt
from jaxrl.distributed.spread import describe_unused
from jaxrl.envs.host.callback import closing_on_error
from jaxrl.envs.host.pools import HostTime
from jaxrl.files import schema
from jaxrl.files.rows import read as read_rows
from jaxrl.training.compilation import compile_chunk
from jaxrl.training.curve import plot_run
from jaxrl.training.evaluate import (
    EVALUATION_SEED,
    MAX_EPISODE_STEPS,
    agent_on_one_device,
    evaluate_separately,
)
from jaxrl.training.fine_tuning import Learned, begin_from, check_agent
from jaxrl.training.loggers import JsonlSink, Sink, TensorBoardSink, read_jsonl
from jaxrl.training.progress import (
    NEEDED,
    NO_TIME,
    LoopSettings,
    Progress,
    Row,
    chunk_length,
    simulator_time,
    throughput_text,
    waiting_shares,
)
from jaxrl.training.progress_bar import ProgressBar
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.best_agent import BestAgent
from jaxrl.training.run_dir.checkpoint import Checkpoints
from jaxrl.training.run_dir.directory import SUMMARY, check_can_begin, has_begun
from jaxrl.types import Algorithm, Array, PyTree

Callback = Callable[[int, Any, Row], None]
"""`f(update, state, row)`, called between two chunks of updates; `row` is the newest one, with
the scores of an evaluation that followed it."""
EVALUATED = ("eval_return", "eval_return_std", "eval_episode_length", "eval_episode_count")
"""The scores of an evaluation: means over the episodes that ended, the standard deviation of their
returns, and their number."""
MAX_SAVING_SHARE = 0.05
"""Share of the time that goes into checkpoints, at most, unless one after every chunk is wanted."""


class RunResult(NamedTuple):
    """The outcome of `jaxrl.run`."""

    state: Any
    """The training state after the last update; its simulators stay open until newer ones displace
    them."""
    summary: dict[str, Any]
    """The content of `summary.json`."""
    interrupted: bool
    """Whether a signal ended the run before its last update or evaluation."""
    run_dir: Path | None

    def __repr__(self) -> str:
        """Return a line without the arrays of the state."""
        names = ("updates", "valid_steps", "mean_return", "eval_return")
        shown = ", ".join(f"{name!r}: {self.summary[name]!r}" for name in names)
        where = None if self.run_dir is None else str(self.run_dir)
        return (
            f"RunResult(summary={{{shown}, ...}}, interrupted={self.interrupted}, "
            f"run_dir={where!r})"
        )


class EvaluationStopped(Exception):
    """The end of an evaluation in which a signal came."""


@jax.jit
def are_finite(params: PyTree) -> Array:
    """Return whether all numbers are finite."""
    return jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(params)] or [True]).all()


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
        learned: Learned | None = None,
    ):
        self.learned = learned
        self.algo, self.config, self.settings = algo, config, settings
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

    def run(self, init: jax.stages.Lowered, seed: int) -> RunResult:
        """Train up to the last update or a signal; `init` is the algorithm's, lowered.

        An error closes the environments on the host, since the state is lost.
        """
        self.evaluation_seed = EVALUATION_SEED - seed  # other episodes for each seed
        state, interrupted = self.first_state(init, seed), False
        with closing_on_error(state):
            if self.run_dir is not None:
                processes.call_on_first(self.open_files)
            is_due = bool(processes.broadcast(np.bool_(self.lacks_evaluation)))
            if is_due or self.progress.update < self.settings.num_updates:
                state, interrupted = self.train(state, is_due)
            summary = self.summarize(interrupted)
        return RunResult(state, summary, interrupted, self.run_dir)

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

    def first_state(self, init: jax.stages.Lowered, seed: int) -> Any:
        """Return the initial state, with the agent to begin with, or the newest checkpoint's."""
        self.bar.say("initializing")
        key = jax.random.key(seed)
        saved_update = None if self.checkpoints is None else self.checkpoints.latest()
        if saved_update is not None and not self.algo.env.checkpointable:
            key = jax.random.fold_in(key, saved_update)  # so that new episodes differ from old ones
        state = init.compile()(self.config, key)
        with closing_on_error(state):
            processes.check_spread(self.algo.name, state)
            used = {device for leaf in jax.tree.leaves(state) for device in leaf.devices()}
            num_used = len(used & set(jax.local_devices()))
            if unused := describe_unused(num_used, "jaxrl train uses more by --devices"):
                self.bar.announce(unused)
            if saved_update is not None:
                like = jax.tree.map(
                    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
                )
                simulation = None if self.algo.env.checkpointable else state.simulation
                del state  # there may be no room for two replays
                state = self.restore(like, simulation)
            else:
                if self.run_dir is not None and has_begun(self.run_dir):
                    self.bar.announce("there is no checkpoint: the run begins anew")
                if self.run_dir is not None:
                    check_agent(self.run_dir, self.learned)
                if self.learned is not None:
                    state = begin_from(state, self.learned)
        self.learned = None  # its arrays can be freed
        return state

    def restore(self, like: Any, simulation: Any) -> Any:
        """Return the saved state, and restore the progress.

        Args:
          like: the shapes and devices of a state.
          simulation: the environments to go on with; None for the saved ones.
        """
        assert self.checkpoints is not None
        whole = simulation is None
        saved, progress = self.checkpoints.restore(like, whole)
        update, file = self.checkpoints.latest(), self.checkpoints.progress_file
        self.progress = Progress.from_json(progress, update, file)
        self.bar.begin_at(self.progress.update * self.settings.steps_per_update)
        self.bar.announce(
            f"resumed after update {self.progress.update:,}"
            + ("" if whole else "; the environments start new episodes")
            + self.checkpoints.other_versions
        )
        return saved if whole else saved._replace(simulation=simulation)

    def train(self, state: Any, is_due: bool) -> tuple[Any, bool]:
        """Do what is left and save; return the state, and whether a signal left something undone.

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
        with Interrupt() as interrupt:
            while is_due or progress.update < settings.num_updates:
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
                    if is_due and not self.evaluate(state, interrupt):
                        break  # a resume repeats it
                    is_due = False
                    for callback in self.callbacks:
                        answer = callback(progress.update, state, self.newest_row)
                        if answer is not None:
                            raise ValueError(
                                f"a callback must return None, got {answer!r}; to stop the run, it "
                                "calls signal.raise_signal(signal.SIGINT)"
                            )
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
        return state, is_due or progress.update < settings.num_updates

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
            self.check_losses(part)
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

    def check_losses(self, metrics: dict[str, np.ndarray]) -> None:
        """Raise `FloatingPointError` if a loss of the next updates is not finite."""
        losses = metrics.get("loss", np.zeros(1))
        finite = np.isfinite(losses)
        if not finite.all():
            first = int(finite.argmin())
            raise FloatingPointError(
                f"the loss is {losses[first]} in update {self.progress.update + first + 1} of "
                f"{self.algo.name} on {self.algo.env.id}; a lower learning rate or gradient norm "
                "may help. Checkpoints before it are kept"
            )

    def check_parameters(self, state: Any) -> None:
        """Raise `FloatingPointError` if a parameter is not finite, which the last loss may miss."""
        if not are_finite(getattr(state, "params", None)):
            raise FloatingPointError(
                f"parameters of {self.algo.name} on {self.algo.env.id} are not finite after update "
                f"{self.progress.update}; a lower learning rate or gradient norm may help. "
                "Checkpoints before it are kept"
            )

    def evaluate(self, state: Any, interrupt: Interrupt) -> bool:
        """Evaluate on separate environments of the first process, and write the scores.

        Returns:
          False if a signal stopped it.
        """
        self.bar.say("evaluating")
        agent = agent_on_one_device(state)
        scores, is_whole = np.full(len(EVALUATED), np.nan, np.float32), np.bool_(True)
        if processes.is_first():
            try:
                scores[:] = self.scores_of(agent, interrupt)
            except EvaluationStopped:
                self.bar.announce("the evaluation was stopped")
                is_whole = np.bool_(False)
        scores, is_whole = processes.broadcast((scores, is_whole))
        if is_whole:
            row = {name: float(x) for name, x in zip(EVALUATED, scores, strict=True)}
            row = {name: x for name, x in row.items() if np.isfinite(x)}
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
        self.bar.say("training")
        return bool(is_whole)

    def scores_of(self, agent: Any, interrupt: Interrupt) -> tuple[float, float, float, int]:
        """Return the scores `EVALUATED` of an agent on one device; means of no episode are NaN.

        Raises:
          EvaluationStopped: after a signal.
        """
        num_episodes = self.settings.eval_episodes
        if not self.progress.episodes:
            self.bar.announce(
                f"no episode has ended in {self.progress.steps:,} steps, so the evaluation may "
                f"take up to {MAX_EPISODE_STEPS:,} steps an episode; give the environments a time "
                "limit, or do not evaluate (num_evaluations=0, --num-evaluations 0)"
            )

        def watch(num_ended: int) -> None:
            self.bar.say(f"evaluating, {num_ended} of {num_episodes} episodes")
            if interrupt.requested:
                raise EvaluationStopped

        returns, lengths = evaluate_separately(
            self.algo, self.config, agent, num_episodes, self.evaluation_seed,
            self.settings.eval_greedy, watch,
        )  # fmt: skip
        ended = np.isfinite(returns)
        if not ended.all():
            self.bar.announce(f"{(~ended).sum()} of {len(ended)} evaluated episodes did not end")
        if not ended.any():
            return np.nan, np.nan, np.nan, 0
        returns, lengths = returns[ended], lengths[ended]
        return float(returns.mean()), float(returns.std()), float(lengths.mean()), len(returns)

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
        self.check_parameters(state)
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
            plot_run(self.run_dir, f"{self.algo.name} on {self.algo.env.id}")
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
