"""The fastest settings for a machine, found by short trials.

GA3C (Babaeizadeh et al. 2017, section 4.3) changes the numbers of its threads while it trains, and
keeps what makes it faster. Here a hill is climbed before training, so that a run's settings stay
what they are, and what was found is kept by hardware.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.envs.host import callback
from jaxrl.envs.host.callback import HostState
from jaxrl.training import manifest as manifests
from jaxrl.training.compilation import cache_directory, compiler_options
from jaxrl.training.loop import MAX_CHUNK, train_chunk
from jaxrl.training.population import choose
from jaxrl.types import Algorithm, PyTree

Settings = dict[str, Any]


class Measurement(NamedTuple):
    """Settings, and how fast they are."""

    settings: Settings
    steps_per_second: float
    """Valid steps; 0 for settings that are refused."""


class AutotuneResult(NamedTuple):
    """What was found."""

    best: Settings
    trials: tuple[Measurement, ...]
    """In the order of trying."""


def autotune(
    build: Callable[..., tuple[Algorithm, Any]],
    knobs: Mapping[str, Sequence[Any]],
    starts: Sequence[Settings],
    *,
    rate: Callable[[Algorithm, Any, float], float] | None = None,
    seconds: float = 2.0,
    max_trials: int = 40,
    cache: Path | bool | None = True,
    report: Callable[[Measurement], None] = lambda trial: None,
) -> AutotuneResult:
    """The fastest settings on this machine, in valid environment steps a second.

    Only what `knobs` names is changed: leave out what changes the learning (as the number of
    environments does; that of threads, pools or devices does not).

    Args:
      build: `build(**settings) -> (algorithm, config)`; a `ValueError` refuses settings, as does
        what no memory is left for.
      knobs: the values of each setting, in an order in which speed rises and falls.
      starts: settings to begin from; the fastest is climbed from.
      rate: `rate(algorithm, config, seconds)`, what is to be high: `steps_per_second` of one agent
        by default; `lanes_per_second` takes the configs `[W]` of a population. What a function of
        your own finds is not cached.
      seconds: length of a trial, without its compilation.
      cache: a file that keeps results by hardware, versions and program; True for one beside the
        compiled programs, False for none.
      report: called after each trial, and not for what the cache has.

    Raises:
      ValueError: if a start has values that its knobs lack, or all settings tried are refused,
        with the reason.
      jax.errors.JaxRuntimeError: if no memory is left for any of them.
    """
    _check_starts(knobs, starts)
    rate = steps_per_second if rate is None else rate
    kept = cache_directory()
    usual = None if kept is None else kept / "autotune.json"
    path = usual if cache is True else (cache or None)
    if rate not in (steps_per_second, lanes_per_second):
        path = None
    algo, config = _first(build, starts)
    question = {
        "knobs": {name: list(values) for name, values in knobs.items()},
        "starts": list(starts),
        "rate": rate.__name__,
        "seconds": seconds,
        "max_trials": max_trials,
    }
    key = _fingerprint(algo, config, question)
    known = _read(path)
    if key in known:
        return _restored(known[key], knobs, starts)
    refusals = []

    def measure(settings: Settings) -> float:
        try:
            measured = rate(*build(**settings), seconds)
        except ValueError as error:
            refusals.append(error)
            measured = 0.0
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            refusals.append(error)
            measured = 0.0
        report(Measurement(settings, measured))
        return measured

    found = climb(measure, knobs, starts, max_trials=max_trials)
    if len(refusals) == len(found.trials):
        raise refusals[0]
    if path is not None:
        try:
            _write(path, _read(path) | {key: found._asdict()})
        except OSError as error:
            warnings.warn(f"what was found is not kept for other runs: {error}", stacklevel=2)
    return found


def climb(
    measure: Callable[[Settings], float],
    knobs: Mapping[str, Sequence[Any]],
    starts: Sequence[Settings],
    *,
    noise: float = 0.02,
    max_trials: int = 40,
) -> AutotuneResult:
    """The best settings that moves along one knob at a time lead to, from the best of `starts`.

    A move goes on in its direction until speed falls by `noise`, and ends at the fastest place on
    its way, if that gains as much. The climb ends where no move gains, or after `max_trials`
    measurements.
    """
    trials: dict[tuple[Any, ...], Measurement] = {}

    def rate(settings: Settings) -> float:
        place = tuple(settings[name] for name in knobs)
        if place not in trials:
            trials[place] = Measurement(settings, measure(settings))
        return trials[place].steps_per_second

    def neighbour(settings: Settings, name: str, direction: int) -> Settings | None:
        values = list(knobs[name])
        index = values.index(settings[name]) + direction
        return settings | {name: values[index]} if 0 <= index < len(values) else None

    def move(settings: Settings, name: str, direction: int) -> Settings:
        fastest, place = settings, neighbour(settings, name, direction)
        while place is not None and len(trials) < max_trials:
            if rate(place) < rate(fastest) * (1 - noise):
                break
            fastest = max(fastest, place, key=rate)
            place = neighbour(place, name, direction)
        return fastest if rate(fastest) > rate(settings) * (1 + noise) else settings

    best, before = max(starts, key=rate), None
    while best != before:
        before = best
        for name in knobs:
            for direction in (1, -1):
                best = move(best, name, direction)
    return AutotuneResult(best, tuple(trials.values()))


def steps_per_second(algo: Algorithm, config: Any, seconds: float) -> float:
    """Valid environment steps a second of whole updates, for about so long after compilation."""
    state = jax.jit(algo.init)(config, jax.random.key(0))
    lowered = train_chunk.lower(algo, config, state, jnp.int32(1))
    compiled = lowered.compile(compiler_options(algo, config))
    state, metrics = compiled(config, state, jnp.int32(1))
    jax.block_until_ready(metrics)
    rates, began, updates = [], time.perf_counter(), 1
    while not rates or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        state, metrics = compiled(config, state, jnp.int32(updates))
        steps = float(np.asarray(metrics["valid_steps"]).sum())
        elapsed = time.perf_counter() - start
        rates.append(steps / elapsed)
        # A few measurements each, whose median no hiccup moves.
        updates = min(max(int(updates * seconds / 8 / elapsed), 1), MAX_CHUNK)
    if isinstance(state.simulation.env_state, HostState):
        callback.release(state.simulation.env_state)
    return float(np.median(rates))


def lanes_per_second(algo: Algorithm, configs: PyTree, seconds: float) -> float:
    """Valid environment steps a second of a population in its fastest strategy."""
    return max(choose(algo, configs, seconds / 4).steps_per_second.values())


def _check_starts(knobs: Mapping[str, Sequence[Any]], starts: Sequence[Settings]) -> None:
    for settings in starts:
        for name, values in knobs.items():
            if settings.get(name) not in values:
                raise ValueError(
                    f"a start has {name} = {settings.get(name)!r}, which is not among the values "
                    f"of that knob, {list(values)}"
                )


def _first(
    build: Callable[..., tuple[Algorithm, Any]], starts: Sequence[Settings]
) -> tuple[Algorithm, Any]:
    """What is built at the first start that is not refused."""
    refusal = ValueError("there are no settings to start from")
    for settings in starts:
        try:
            return build(**settings)
        except ValueError as error:
            refusal = error
    raise refusal


def _fingerprint(algo: Algorithm, config: Any, question: dict[str, Any]) -> str:
    """Of machine, versions, program and question."""
    described = manifests.describe(algo, config, {})
    what = ("algorithm", "env", "config", "versions", "hardware")
    whole = {name: described[name] for name in what} | question | {"network": repr(algo.network)}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def _restored(
    saved: dict[str, Any], knobs: Mapping[str, Sequence[Any]], starts: Sequence[Settings]
) -> AutotuneResult:
    """What was saved as JSON, with the very values of knobs and starts: it has no tuples."""

    def original(name: str, value: Any) -> Any:
        given = [*knobs.get(name, ()), *(start[name] for start in starts if name in start)]
        return next(x for x in given if json.dumps(x) == json.dumps(value))

    def settings(values: dict[str, Any]) -> Settings:
        return {name: original(name, value) for name, value in values.items()}

    trials = tuple(Measurement(settings(values), speed) for values, speed in saved["trials"])
    return AutotuneResult(settings(saved["best"]), trials)


def _read(path: Path | None) -> dict[str, Any]:
    """What is known; nothing if the file is damaged."""
    try:
        known = {} if path is None else json.loads(path.read_text())
    except (OSError, ValueError):
        known = {}
    return known if isinstance(known, dict) else {}


def _write(path: Path, known: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(known, indent=1) + "\n")
    temporary.replace(path)
