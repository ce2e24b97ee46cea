"""Checks of schedulers against their contract, for authors of their own.

`jaxrl.tuning.evolution.check` checks explorers, and `jaxrl.tuning.samplers.check` samplers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.tuning.schedulers import ledger as ledgers
from jaxrl.tuning.schedulers.contract import MEMBERS, Ledger, Scheduler, Status
from jaxrl.types import Array

UNTRACEABLE = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)
"""What JAX raises if NumPy or Python's `if` meets an array that is traced."""


def check_scheduler(scheduler: Scheduler, seed: int = 0) -> None:
    """Check the decisions of a scheduler in searches with random scores.

    Small numbers of trials and phases suffice, and cost seconds.

    Args:
      seed: of the scores, of which some are NaN, -inf or equal.

    Raises:
      ValueError: with the violations of the contract (`Scheduler`) that were found.
    """
    seed = checks.seed(seed)
    raise_for(scheduler, "schedulers", wrong_members(scheduler, MEMBERS))
    raise_for(scheduler, "schedulers", wrong_judge(scheduler))
    raise_for(scheduler, "schedulers", _check_search(scheduler, seed))


def raise_for(checked: Any, kind: str, problems: Iterable[str]) -> None:
    """Raise `ValueError` if there are problems; each is named once."""
    if found := list(dict.fromkeys(problems)):
        text = "\n  - ".join(found)
        raise ValueError(f"{checked!r} breaks the contract of {kind}:\n  - {text}")


def wrong_members(scheduler: Any, members: tuple[str, ...]) -> Iterator[str]:
    """Yield problems of what a scheduler has."""
    if isinstance(scheduler, type):
        yield "it is a class: make an instance"
        return
    missing = [name for name in members if not hasattr(scheduler, name)]
    if missing:
        yield f"it has no {', '.join(missing)}"
        return
    if not dataclasses.is_dataclass(scheduler):
        yield "it is no dataclass, by whose fields sweeps know it: make it a frozen dataclass"
    try:
        hash(scheduler)
    except TypeError:
        yield "it cannot be hashed, which jit needs: make it a frozen dataclass of plain values"
    for name in ("num_trials", "num_phases"):
        value = getattr(scheduler, name)
        if type(value) is not int or value < 1:
            yield f"{name} must be an integer >= 1, is {value!r}"
    if type(scheduler.pauses) is not bool:
        yield f"pauses must be True or False, is {scheduler.pauses!r}"


def wrong_judge(scheduler: Scheduler) -> Iterator[str]:
    """Yield problems of what `judge` returns, without running it."""
    ledger = ledgers.start(scheduler)
    try:
        status = jax.eval_shape(scheduler.judge, ledger, jnp.int32(0))
    except UNTRACEABLE as error:
        yield explain_tracing("judge(ledger, trial)", error)
        return
    yield from wrong_arrays("judge", {"the status": (status, ledger.status)})


def explain_tracing(function: str, error: Exception) -> str:
    """Return the problem of a function that JAX cannot trace."""
    first = next(iter(str(error).splitlines()), "")
    return (
        f"{function} must compute by jax.numpy, without NumPy and Python's `if` on arrays; it "
        f"failed with {type(error).__name__}: {first}"
    )


def _check_search(scheduler: Scheduler, seed: int) -> Iterator[str]:
    """Yield problems of all decisions in searches on one lane, on some, and on one per trial."""
    generator = np.random.default_rng(seed)
    shape = (scheduler.num_trials, scheduler.num_phases)
    judge = jax.jit(jax.vmap(scheduler.judge, (0, None)))
    for num_lanes in sorted({1, (shape[0] + 1) // 2, shape[0]}):
        scores = generator.normal(size=shape).astype(np.float32)
        scores[generator.random(shape) < 0.2] = 0.5
        scores[generator.random(shape) < 0.1] = np.nan
        scores[generator.random(shape) < 0.1] = -np.inf
        ledger = ledgers.start(scheduler)
        lanes: list[int] = []
        while True:
            while len(lanes) < num_lanes:
                ledger, assigned = ledgers.assign(ledger)
                if assigned < 0:
                    break
                lanes.append(int(assigned))
            if not lanes:
                break
            trial = lanes.pop(int(generator.integers(len(lanes))))
            if scheduler.pauses and generator.random() < 0.05:  # a cap ends the trial
                status = ledger.status.at[trial].set(Status.STOPPED)
                before = ledger._replace(status=status)
                ledger = ledgers.stop(scheduler, ledger, np.int32(trial))
                if problems := list(_wrong_decisions(scheduler, judge, before, ledger, trial)):
                    yield from problems
                    return
                continue
            phase = int(ledger.reported[trial])
            before, score = ledger.status, scores[trial, phase]
            ledger = ledgers.report(scheduler, ledger, np.int32(trial), score)
            reported = ledger._replace(status=before)
            if problems := list(_wrong_decisions(scheduler, judge, reported, ledger, trial)):
                yield from problems
                return  # such a search may never end
            if ledger.status[trial] == Status.RUNNING:
                lanes.append(trial)


def _wrong_decisions(
    scheduler: Scheduler, judge: Callable[..., Array], ledger: Ledger, after: Ledger, trial: int
) -> Iterator[str]:
    """Yield problems of the status that is judged after `trial` has reported, or was stopped."""
    old, status = np.asarray(ledger.status), np.asarray(after.status)
    both = jax.tree.map(lambda x: np.stack([x, x]), ledger)
    again = np.asarray(judge(both, np.int32(trial)))
    others = np.arange(len(status)) != trial
    # The status of a trial that has reported all phases, or was stopped, is not judged.
    is_set = (ledger.reported[trial] >= scheduler.num_phases) | (old[trial] >= Status.STOPPED)
    if ((again != status) & (others | ~is_set)).any():
        yield "judge decides otherwise the next time, or under vmap"
    if not np.isin(status, list(Status)).all():
        yield f"judge returned {sorted(set(status.tolist()))}, of which some are no Status"
    if (others & (old >= Status.STOPPED) & (status != old)).any():
        yield "a trial that has ended changes its status"
    if ((status == Status.RUNNING) & (old != Status.RUNNING)).any():
        yield "judge sets a trial RUNNING that has no lane: set it READY"
    if ((status == Status.WAITING) & (old != Status.WAITING)).any():
        yield "judge sets a trial WAITING that has begun: set it READY"
    if ((others | ~is_set) & (status == Status.COMPLETED) & (old != Status.COMPLETED)).any():
        yield "judge sets a trial COMPLETED that has not reported all phases: set it STOPPED"
    if not scheduler.pauses and np.isin(status, [Status.PAUSED, Status.READY]).any():
        yield "judge pauses a trial although `pauses` is False, so no agents are kept"


def random_scores(number: int, num_phases: int, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names of kinds of scores, and such scores of all trials and phases, `[N, P]`."""
    generator = np.random.default_rng(seed)
    usual = generator.normal(size=(number, num_phases)).astype(np.float32)
    yield "usual", usual
    some, most = usual.copy(), usual.copy()
    for phase in range(num_phases):
        places = generator.permutation(number)[1:]
        most[places, phase] = np.resize((np.nan, -np.inf), number - 1)
        some[places[:2], phase] = most[places[:2], phase]
    yield "some missing", some
    yield "most missing", most
    yield "no", np.full_like(usual, np.nan)
    yield "equal", np.zeros_like(usual)
    yield "huge", usual * np.float32(1e30)


def wrong_arrays(where: str, found: dict[str, tuple[Any, Any]]) -> Iterator[str]:
    """Yield arrays whose shape or dtype is not that of the wanted ones, by name."""
    for name, (x, wanted) in found.items():
        if (x.shape, x.dtype) != (wanted.shape, wanted.dtype):
            is_, must = (f"{y.dtype.name}{list(y.shape)}" for y in (x, wanted))
            yield f"{where}: {name} must be {must}, is {is_}"
