"""Odd arguments of functions and commands."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
from pathlib import Path
from typing import Any

from faults.odd_values import (
    IDS,
    ODD,
    OPTIONS,
    TEXTS,
    Case,
    is_hopeless,
    is_small,
    key,
    odd,
    plain,
)

# --- functions ------------------------------------------------------------------------------------


def config(rng: random.Random, directory: Path) -> Case:
    """Make a config, and trace an algorithm with some of those that are accepted."""
    import small_algorithms

    import jaxrl

    name = rng.choice(("ppo", "a2c", "impala", "dqn", "pqn", "r2d2"))
    base = small_algorithms.CONFIGS[name]
    values = odd(rng, [field.name for field in dataclasses.fields(base)], 2)
    traces = rng.random() < 0.2

    def make() -> None:
        import jax

        made = base.replace(**values)
        if traces:
            algo = small_algorithms.algorithm(name)
            jax.eval_shape(functools.partial(jaxrl.train, algo, num_updates=1), made, key())

    return Case(f"{name} {values}", tuple(values), make, is_hopeless(values))


def space(rng: random.Random, directory: Path) -> Case:
    """Make a distribution, check it as a space, and draw from it."""
    import small_algorithms

    from jaxrl import tuning
    from jaxrl.tuning.spaces import space as spaces

    base = small_algorithms.CONFIGS["ppo"]
    kind, count = rng.choice(
        (("Uniform", 2), ("LogUniform", 2), ("Integer", 2), ("QLogUniform", 2),
         ("QLogUniform", 3), ("QLogUniform", 4), ("Choice", 1))
    )  # fmt: skip
    name = rng.choice([field.name for field in dataclasses.fields(base)] + ["num_envs", "unknown"])
    arguments = [rng.choice(ODD) for _ in range(count)]
    if kind == "Choice" and rng.random() < 0.8:
        arguments = [tuple(rng.choice(ODD) for _ in range(rng.randrange(4)))]

    def make() -> None:
        made = {name: getattr(tuning, kind)(*arguments)}
        spaces.check(made, base)
        values = spaces.values(made, spaces.draw(made, key()))
        if name != "num_envs":
            base.replace(**values)

    is_bad = is_hopeless(dict(enumerate(arguments)))
    return Case(f"{name} {kind} {arguments}", (kind, name), make, is_bad)


def scheduler(rng: random.Random, directory: Path) -> Case:
    """Make a scheduler and let it judge."""
    from jaxrl import tuning
    from jaxrl.tuning.schedulers import ledger as ledgers

    kind = rng.choice(("RandomSearch", "HyperTrick", "HyperBand", "SuccessiveHalving", "ASHA"))
    made = getattr(tuning, kind)
    names = [field.name for field in dataclasses.fields(made) if field.init]
    values: dict[str, Any] = {"num_phases": 3} | ({"num_trials": 4} if kind != "HyperBand" else {})
    values |= odd(rng, names, 2)

    def make() -> None:
        import jax

        rule = made(**values)
        if rule.num_trials * rule.num_phases < 10_000:
            jax.eval_shape(rule.judge, ledgers.start(rule), jax.numpy.int32(0))

    return Case(f"{kind} {values}", (kind, *names), make, is_hopeless(values))


def run_arguments(rng: random.Random, directory: Path) -> Case:
    """Train for an update, or as far as the arguments are checked."""
    from sweep_runs import ToyConfig, toy_algorithm

    import jaxrl

    names = ("seed", "total_steps", "run_dir", "num_evaluations", "eval_episodes", "log_every",
             "chunk_updates", "chunk_seconds", "checkpoint_seconds")  # fmt: skip
    values: dict[str, Any] = {"total_steps": 8, "num_evaluations": 0, "progress_bar": False}
    values |= odd(rng, names, 2)
    if isinstance(values.get("run_dir"), str | bytes):
        values["run_dir"] = directory / repr(values["run_dir"])[:200]

    def run() -> None:
        with stop_at("jaxrl.training.run.TrainingLoop.run", is_small(values)):
            jaxrl.run(toy_algorithm(), ToyConfig(), **values)

    return Case(f"jaxrl.run {values}", tuple(values), run, is_hopeless(values))


def sweep_arguments(rng: random.Random, directory: Path) -> Case:
    """Sweep two trials, or as far as the arguments are checked."""
    import sweep_runs

    from jaxrl.tuning import Phase, RandomSearch

    names = ("num_lanes", "phase", "seed", "sampler", "storage", "study_name", "strategy", "worker",
             "agents_dir", "keep_best", "keep_best_per", "heartbeat_seconds", "checkpoint_seconds",
             "chunk_seconds")  # fmt: skip
    values = odd(rng, names, 2)
    unit = rng.choice(("updates", "steps", "episodes", "x"))
    is_short = is_small(values) and "phase" not in values
    others = {name: value for name, value in values.items() if name != "phase"}

    def sweep() -> None:
        phase = Phase(values.get("phase", 1), unit)
        with stop_at("jaxrl.tuning.sweeps.loop.SweepLoop.run", is_short):
            sweep_runs.run(directory / "sweep", RandomSearch(2, 1), phase=phase, **others)

    words = (*values, "Phase", "study")
    return Case(f"sweep {values}, {unit}", words, sweep, is_hopeless(values))


def env(rng: random.Random, directory: Path) -> Case:
    """Make environments and trace their beginning."""
    import jaxrl

    id: Any = rng.choice(IDS)
    if rng.random() < 0.3:
        position = rng.randrange(len(id))
        id = id[:position] + rng.choice("x/:-v0é\0 .") + id[position + rng.randrange(2) :]
    id = rng.choice(ODD) if rng.random() < 0.1 else id
    values = odd(rng, ["num_envs", *OPTIONS], 2)

    def make() -> None:
        import jax

        made = jaxrl.make(id, **values)
        _ = made.observation_space, made.action_space
        if values.get("num_envs", 1) < 1000:
            jax.eval_shape(made.init, key())

    return Case(f"make {id!r} {values}", (str(id) or "id", "id", "pools", *values), make)


def stop_at(name: str, to_the_end: bool) -> contextlib.AbstractContextManager[Any]:
    """Replace a function (by its path) where work begins, unless it may go on to the end."""
    from unittest import mock

    return contextlib.nullcontext() if to_the_end else mock.patch(name, side_effect=SystemExit(0))


# --- command lines -------------------------------------------------------------------------------

FLAGS: dict[str, tuple[str, ...]] = {
    "train": ("env-id", "total-steps", "num-envs", "env-options", "devices", "coordinator",
              "num-hosts", "host-id", "seed", "preset", "num-evaluations", "eval-episodes",
              "resume", "log-every", "autotune-also", "learning-rate", "hidden-sizes", "num-steps",
              "core", "gamma", "num-minibatches", "torso", "video", "no-anneal", "cluster"),
    "sweep": ("algo", "env-id", "num-envs", "env-options", "set", "space", "trials", "lanes",
              "phases", "phase-length", "phase-unit", "scheduler", "eviction", "eta", "sampler",
              "storage", "study", "worker", "agents-dir", "strategy", "cpu-devices", "seed",
              "resume", "keep-best", "videos-by", "unheard"),
    "play": ("episodes", "seed", "greedy", "format", "max-steps", "unheard"),
    "compare": ("out", "unheard"),
    "submit": ("name", "scheduler", "gpus", "cpus", "nodes", "hours", "container", "workers",
               "extra", "unheard"),
    "envs": ("unheard",),
    "doctor": ("unheard",),
}  # fmt: skip
POSITIONAL = {
    "train": ("ppo", "a2c", "dqn", "impala", "pqn", "r2d2"),
    "play": ("run", "none", "empty"),
    "compare": ("run", "none", "empty"),
    "envs": ("CartPole-v1", "probe", "[", "no such", "é"),
}
STOPS = ("jaxrl.cli.train.run", "jaxrl.tuning.sweep", "jaxrl.distributed.processes.connect",
         "jaxrl.cli.doctor.examine", "jaxrl.cli.play.film")  # fmt: skip
"""Where the work of commands begins."""


def command(rng: random.Random, directory: Path) -> Case:
    """Run a command as far as its work begins."""
    name = rng.choice(list(FLAGS)) if rng.random() < 0.97 else rng.choice(TEXTS)
    argv = [name]
    if name in POSITIONAL:
        argv.append(rng.choice((*POSITIONAL[name], rng.choice(TEXTS))))
    flags = FLAGS.get(name, ("x",))
    for flag in rng.sample(flags, min(rng.randint(0, 3), len(flags))):
        values = (*TEXTS, *IDS) if flag == "env-id" else TEXTS
        argv += [f"--{flag}", *rng.sample(values, rng.choice((0, 1, 1, 1, 1, 2)))]
    if name in ("train", "sweep"):
        argv += ["--run-dir", "new"]
    if name == "submit":
        argv += ["--dry-run", "--", rng.choice(("jaxrl", "x")), *rng.sample(TEXTS, 2)]
    if name in ("envs", "doctor") and len(argv) == 1:
        argv.append("--unheard")  # all environments, and all checks, take longer

    def run() -> None:
        from unittest import mock

        from jaxrl.__main__ import main

        (directory / "empty").mkdir()
        os.chdir(directory)
        try:
            with contextlib.ExitStack() as stack:
                for module in ("train", "sweep"):  # JAX has started in the warm process
                    stack.enter_context(mock.patch(f"jaxrl.cli.{module}.split_cpu"))
                for stop in STOPS:
                    stack.enter_context(mock.patch(stop, side_effect=SystemExit(0)))
                raise SystemExit(main(argv))
        finally:
            os.chdir("/")

    parts = [part for x in argv for part in (x, x.partition("=")[2])]
    words = [plain(part.strip("-")).rstrip("/")[:80] for part in parts]  # errors shorten values
    return Case(" ".join(argv), tuple(word for word in words if word), run)
