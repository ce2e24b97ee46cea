"""Training runs: `train`, a pure `lax.scan` over updates, and `run`, with files and a resume."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl import checks
from jaxrl.checks import DELAY, MAX_COUNT, MAX_LONG, NOT_NEGATIVE
from jaxrl.distributed import processes
from jaxrl.training.compilation import enable_compilation_cache
from jaxrl.training.fine_tuning import learned_by
from jaxrl.training.loggers import Sink
from jaxrl.training.loop import Callback, TrainingLoop
from jaxrl.training.policy import LoadedPolicy
from jaxrl.training.progress.schedule import MAX_CHUNK, LoopSettings
from jaxrl.training.run_dir import first_agent
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.directory import open_run_dir
from jaxrl.types import Algorithm, Array, Metrics, check_agent, check_environments


def train(algo: Algorithm, config: Any, key: Array, num_updates: int) -> tuple[Any, Metrics]:
    """Train from scratch for `num_updates` updates.

    Pure, so `jit` it (`static_argnums=(0, 3)`), `vmap` it over keys and config leaves, `pmap` it.

    Returns:
      The final state, and metrics whose leaves are `[num_updates]`. To continue a state, `scan`
      over `lambda state, _: algo.update(config, state)`.

    Raises:
      ValueError: for bad arguments.
    """

    def step(state: Any, _: None) -> tuple[Any, Metrics]:
        return algo.update(config, state)

    check_agent(algo, config)
    num_updates = checks.integer("num_updates", num_updates, 0)
    return jax.lax.scan(step, algo.init(config, checks.random_key("key", key)), length=num_updates)


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


def run(
    algo: Algorithm,
    config: Any,
    *,
    seed: int = 0,
    total_steps: int | float,
    run_dir: str | Path | None = None,
    resume: bool = False,
    num_evaluations: int = 1,
    eval_episodes: int = 16,
    eval_greedy: bool = False,
    log_every: int | None = None,
    chunk_updates: int | None = None,
    chunk_seconds: float = 2.0,
    checkpoint_seconds: float = 10.0,
    sinks: Sequence[Sink] = (),
    callbacks: Sequence[Callback] = (),
    label: str | None = None,
    init_from: LoadedPolicy | None = None,
    progress_bar: bool = True,
) -> RunResult:
    """Train an agent, with a progress bar, logs, evaluations and checkpoints.

    The first Ctrl-C or SIGTERM stops the run after its current chunk of updates, with a
    checkpoint, and this function returns: in a loop over runs, look at `result.interrupted`. On a
    CPU a resumed run continues bit for bit; host environments start new episodes.
    If several processes train one agent (`jaxrl.distributed.processes`), each calls this with the
    same arguments and with a `run_dir` that all of them see.

    Args:
      algo: an algorithm with its environments, such as `jaxrl.ppo(jaxrl.make("CartPole-v1", 8))`.
      config: its config, such as `jaxrl.PPOConfig(learning_rate=1e-3)`.
      seed: of all randomness, an integer from 0 to 2^32 - 1.
      total_steps: steps of all environments together, with those that only reset an episode,
        counted from the run's first start, rounded up to whole updates; an integer, or a float
        such as 1e6.
      run_dir: directory for `manifest.json`, `metrics.jsonl`, `tensorboard/`, `checkpoints/`,
        `best/` (the agent that was evaluated best), `summary.json` and `curve.png`; None writes
        nothing.
      resume: continue the run in `run_dir`, if there is one.
      num_evaluations: number of evaluations, evenly spaced, the last one at the end; 0 for none.
      eval_episodes: whole episodes of an evaluation. They run in up to 16 separate environments;
        their keys follow from `seed`, and are the same in all evaluations of the run.
      eval_greedy: whether evaluations take the policy's most probable actions instead of samples.
      log_every: updates that make one row, at most 1,024; None keeps the resumed run's value, and
        gives a new run about 1,000 rows.
      chunk_updates, chunk_seconds: length of a call of the compiled program, by time if
        `chunk_updates` is None. Logs, checkpoints and signals wait for its end. One that is as long
        as a row is shortened to end with a row.
      checkpoint_seconds: seconds between checkpoints, and so what a kill may lose; more if writing
        them would take over 5% of the time; 0 for one after every chunk.
      sinks: further places for the rows, such as `jaxrl.training.loggers.WandbSink`. The
        run closes them at its end, also after an error.
      callbacks: functions `f(update, state, row)`, called after each chunk with the number of
        updates, the training state and the newest row: empty before the first, and with the
        `eval_return` of an evaluation that followed it. The next chunk takes the state's arrays;
        copy what you keep. One that raises `jaxrl.StopRun` ends the run, after a last evaluation.
      label: a name of the run for pages that compare runs.
      init_from: a trained agent to begin with, such as `jaxrl.load_policy(directory)`: the run
        takes over its parameters and the statistics of observations and rewards; its optimizer,
        replay and schedules are new. A run that resumes from a checkpoint needs none.
      progress_bar: show the progress on stderr: a bar in a terminal, a line every 30 s elsewhere.

    Raises:
      ValueError: for bad sizes; for a `run_dir` that holds a run already, or in which another
        process works; if config, environment or seed of a resumed run differ from the saved ones,
        or its learning rate has fallen to 0 and `total_steps` is more than before.
      FloatingPointError: if a loss is not finite; checkpoints before it are kept.
      OSError: if `run_dir` cannot be written to (a full disk); what is saved stays.
    """
    check_sinks(sinks)
    with contextlib.ExitStack() as stack:
        for sink in sinks:
            stack.callback(sink.close)
        check_agent(algo, config)
        check_environments(algo.env)
        seed = checks.seed(seed)
        total_steps = checks.integer("total_steps", total_steps, most=MAX_LONG, whole_floats=True)
        directory = checks.optional(checks.path, "run_dir", run_dir)
        resume = checks.flag("resume", resume)
        progress_bar = checks.flag("progress_bar", progress_bar)
        num_evaluations = checks.integer("num_evaluations", num_evaluations, 0)
        eval_episodes = checks.integer("eval_episodes", eval_episodes)
        eval_greedy = checks.flag("eval_greedy", eval_greedy)
        log_every = checks.optional(checks.integer, "log_every", log_every, 1, MAX_CHUNK)
        chunk_updates = checks.optional(checks.integer, "chunk_updates", chunk_updates)
        chunk_seconds = checks.number("chunk_seconds", chunk_seconds, NOT_NEGATIVE)
        checkpoint_seconds = checks.number("checkpoint_seconds", checkpoint_seconds, DELAY)
        for callback in checks.instance("callbacks", callbacks, Sequence, "a list of functions"):
            checks.instance("callbacks", callback, Callable, "a list of functions")
        label = checks.optional(checks.text, "label", label)
        if init_from is not None:
            text = "an agent, such as jaxrl.load_policy(run_dir)"
            checks.instance("init_from", init_from, LoadedPolicy, text)
            if init_from.algo.name != algo.name:
                raise checks.refuse("init_from", f"an agent of {algo.name}", init_from.algo.name)
        steps_per_update = algo.env.num_envs * algo.num_steps(config)
        num_updates = count_updates(algo, config, total_steps)
        if num_updates > MAX_COUNT:  # annealing and target networks count them in 32 bits
            raise ValueError(
                f"total_steps={total_steps:,} are {num_updates:,} updates of {steps_per_update} "
                "steps, but a run has at most 2^31 - 1; use more environments or longer rollouts"
            )
        settings = LoopSettings(
            num_updates=num_updates,
            steps_per_update=steps_per_update,
            log_every=row_length(log_every, num_updates, directory if resume else None),
            num_evaluations=num_evaluations,
            eval_episodes=eval_episodes,
            eval_greedy=eval_greedy,
            chunk_updates=chunk_updates,
            chunk_seconds=chunk_seconds,
            checkpoint_seconds=checkpoint_seconds,
        )
        # Tracing finds sizes that do not fit before anything is written.
        init = jax.jit(algo.init).lower(config, jax.random.key(seed))
        if "simulation" not in getattr(init.out_info, "_fields", ()):
            requirement = "a NamedTuple with a field `simulation`"
            raise checks.refuse("the state of algo.init", requirement, type(init.out_info))
        learned = None if init_from is None else learned_by(init_from, init.out_info)
        enable_compilation_cache()
        if directory is not None:
            arguments = {
                "run_id": manifests.new_run_id(), "seed": seed, "total_steps": total_steps,
                "log_every": settings.log_every, "num_evaluations": num_evaluations,
                "eval_episodes": eval_episodes, "eval_greedy": eval_greedy, "label": label,
                "init_from": None if init_from is None else init_from.origin,
            }  # fmt: skip
            manifest = manifests.describe(algo, config, arguments)
            opened = open_run_dir(directory, manifest, resume, settings.num_updates)
            stack.enter_context(opened)
        loop = TrainingLoop(algo, config, settings, directory, sinks, callbacks, progress_bar, seed)
        stack.callback(loop.close)
        with processes.failing_together(jax.errors.JaxRuntimeError, OSError, KeyboardInterrupt):
            return RunResult(*loop.run(init, learned), directory)


def count_updates(algo: Algorithm, config: Any, total_steps: int) -> int:
    """Return the number of updates with at least this number of environment steps."""
    return -(-total_steps // (algo.env.num_envs * algo.num_steps(config)))


def check_sinks(sinks: Any) -> None:
    """Raise `ValueError` unless `sinks` is a sequence of sinks."""
    for sink in checks.instance("sinks", sinks, Sequence, "a list of sinks"):
        if isinstance(sink, type) or not all(hasattr(sink, name) for name in ("write", "close")):
            raise checks.refuse("sinks", "a list of objects with `write` and `close`", sinks)


def row_length(log_every: int | None, num_updates: int, resumed: Path | None) -> int:
    """Return the number of updates of a row.

    Args:
      log_every: the number asked for; None for the resumed run's, or else for 1,000 rows.
      num_updates: of the whole run.
      resumed: directory of the run to resume, if any.
    """
    if log_every is None and resumed is not None and (resumed / manifests.NAME).exists():
        log_every = manifests.read(resumed, ["log_every"])["log_every"]
    if log_every is None:
        log_every = min(max(1, num_updates // 1000), MAX_CHUNK)
    return int(processes.broadcast(np.int32(log_every)))


def rerun(
    run_dir: str | Path, new_run_dir: str | Path, *, trust_imports: bool = False, **arguments: Any
) -> RunResult:
    """Repeat a run from its manifest, into another directory.

    Args:
      run_dir: directory of the run to repeat.
      new_run_dir: directory of the new run.
      trust_imports: as for `load_policy`.
      **arguments: keyword arguments of `run`, such as `seed`, that replace those of the old run;
        and `network`, `make_algorithm` and `env` as in `load_policy`, if the run had its own.

    Raises:
      ValueError: if the run began from an agent, and no `init_from` is given.
    """
    run_dir, new_run_dir = (
        checks.path(name, value)
        for name, value in (("run_dir", run_dir), ("new_run_dir", new_run_dir))
    )
    manifest = manifests.read(run_dir, manifests.ARGUMENTS)
    began = manifest.get("init_from")
    if began is not None and arguments.get("init_from") is None:
        raise first_agent.lacks_agent(began, f"the run in {run_dir}")
    own = {name: arguments.pop(name, None) for name in ("network", "make_algorithm", "env")}
    algo, config = manifests.rebuild(manifest, **own, trust_imports=trust_imports, run_dir=run_dir)
    number, own_number = manifest["env"]["num_envs"], algo.env.num_envs
    if number != own_number:
        raise checks.refuse("env", f"{number} environments, as the run had", own_number)
    old_arguments = {name: manifest[name] for name in manifests.ARGUMENTS}
    return run(algo, config, run_dir=new_run_dir, **(old_arguments | arguments))
