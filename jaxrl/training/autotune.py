"""Autotune: find the fastest settings for a machine by short measurements before training.

GA3C (Babaeizadeh et al. 2017, section 4.3) changes the numbers of its threads while it trains, and
keeps a change that makes it faster. `autotune` climbs the same hill before training, so that the
settings of a run never change, and caches the result by hardware.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.checks import POSITIVE
from jaxrl.envs.host import callback
from jaxrl.files import schema
from jaxrl.files.whole import write_whole
from jaxrl.training.compilation import (
    cache_directory,
    compile_chunk,
    is_out_of_memory,
)
from jaxrl.training.population import choose
from jaxrl.training.progress.schedule import MAX_CHUNK
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.types import Algorithm, PyTree

Settings = dict[str, Any]
Knobs = Mapping[str, Sequence[Any]]


class Measurement(NamedTuple):
    """Settings and their speed."""

    settings: Settings
    steps_per_second: float
    """Valid environment steps; 0 for settings that were refused."""


class AutotuneResult(NamedTuple):
    """The fastest settings and all measurements."""

    best: Settings
    trials: tuple[Measurement, ...]
    """In the order of measuring."""


def autotune(
    build: Callable[..., tuple[Algorithm, Any]],
    knobs: Knobs,
    starts: Sequence[Settings],
    *,
    rate: Callable[[Algorithm, Any, float], float] | None = None,
    seconds: float = 2.0,
    max_trials: int = 40,
    cache: Path | bool | None = True,
    report: Callable[[Measurement], None] = lambda measurement: None,
) -> AutotuneResult:
    """Find the fastest settings on this machine, in valid environment steps per second.

    Only the settings in `knobs` are changed. Leave out those that change the learning, such as the
    number of environments. Numbers of threads and pools do not change it; of devices, only which
    transitions share a minibatch.

    Args:
      build: `build(**settings) -> (algorithm, config)`. Settings are skipped if it raises
        `ValueError` or if memory runs out.
      knobs: for each setting its values, in an order in which the speed rises and then falls.
      starts: settings to measure first; the climb begins at the fastest.
      rate: `rate(algorithm, config, seconds)`, the number to maximize: `steps_per_second` of one
        agent by default, or `lanes_per_second`, which takes the configs `[W]` of a population.
        Results of a function of your own are not cached.
      seconds: time of one measurement, without compilation.
      max_trials: measurements, at most; all starts are measured.
      cache: a file that keeps results by hardware, versions and program; True for one beside the
        compiled programs, False for none.
      report: called after each measurement, but not for cached ones.

    Raises:
      ValueError: if a start has a value that is not in `knobs`. If all settings are skipped, the
        first error is raised.
      jax.errors.JaxRuntimeError: if that first error is a lack of memory.
    """
    checks.function("build", build)
    _check_knobs(knobs, starts)
    seconds = checks.number("seconds", seconds, POSITIVE)
    max_trials = checks.integer("max_trials", max_trials)
    checks.function("report", report)
    rate = steps_per_second if rate is None else checks.function("rate", rate)
    path = _cache_path(cache) if rate in (steps_per_second, lanes_per_second) else None
    if path is not None and (built := _build_first(build, starts)) is not None:
        key = _cache_key(
            *built,
            knobs={name: list(values) for name, values in knobs.items()},
            starts=list(starts),
            rate=rate.__name__,
            seconds=seconds,
            max_trials=max_trials,
        )
        if (found := _from_json(_read(path).get(key), knobs, starts)) is not None:
            return found
    else:
        path, key = None, ""
    refusals: list[Exception] = []

    def measure(settings: Settings) -> float:
        try:
            speed = rate(*build(**settings), seconds)
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            if not isinstance(error, ValueError) and not is_out_of_memory(error):
                raise
            refusals.append(error)
            speed = 0.0
        report(Measurement(settings, speed))
        return speed

    found = climb(measure, knobs, starts, max_trials=max_trials)
    if len(refusals) == len(found.trials):
        raise refusals[0]
    if path is not None:
        try:
            _write(path, _read(path) | {key: found._asdict()})
        except OSError as error:
            warnings.warn(f"cannot save the settings found for later runs: {error}", stacklevel=2)
    return found


def climb(
    measure: Callable[[Settings], float],
    knobs: Knobs,
    starts: Sequence[Settings],
    *,
    noise: float = 0.02,
    max_trials: int = 40,
) -> AutotuneResult:
    """Climb from the fastest start, along one knob at a time, until no move gains.

    A move goes through the values of a knob in one direction until the speed falls by `noise`. It
    ends at the fastest value it met, if that gains more than `noise`; else it ends where it began.

    Args:
      measure: returns the speed of settings; called once for each.
      knobs, starts: as for `autotune`.
      noise: relative difference of speeds that means nothing.
      max_trials: measurements, at most; all starts are measured.
    """
    measured: dict[tuple[Any, ...], Measurement] = {}

    def speed(settings: Settings) -> float:
        place = tuple(settings[name] for name in knobs)
        if place not in measured:
            measured[place] = Measurement(settings, measure(settings))
        return measured[place].steps_per_second

    def move(settings: Settings, name: str, direction: int) -> Settings:
        values = list(knobs[name])
        index, fastest = values.index(settings[name]), settings
        for value in values[index + 1 :] if direction > 0 else values[:index][::-1]:
            settings_there = settings | {name: value}
            if len(measured) >= max_trials or speed(settings_there) < speed(fastest) * (1 - noise):
                break
            fastest = max(fastest, settings_there, key=speed)
        return fastest if speed(fastest) > speed(settings) * (1 + noise) else settings

    best, before = max(starts, key=speed), None
    while best != before:
        before = best
        for name in knobs:
            for direction in (1, -1):
                best = move(best, name, direction)
    return AutotuneResult(best, tuple(measured.values()))


def steps_per_second(algo: Algorithm, config: Any, seconds: float) -> float:
    """Measure valid environment steps per second of whole updates, for about `seconds`."""
    state = jax.jit(algo.init)(config, jax.random.key(0))
    with callback.closing(state):
        program = compile_chunk(algo, config, state)
        state, metrics = program(config, state, jnp.int32(1))
        jax.block_until_ready(metrics)
        rates, began, updates = [], time.perf_counter(), 1
        while not rates or time.perf_counter() - began < seconds:
            start = time.perf_counter()
            state, metrics = program(config, state, jnp.int32(updates))
            steps = float(np.asarray(metrics["valid_steps"]).sum())
            elapsed = time.perf_counter() - start
            rates.append(steps / elapsed)
            # About eight measurements, because a short disturbance does not move their median.
            updates = min(max(int(updates * seconds / 8 / elapsed), 1), MAX_CHUNK)
    return float(np.median(rates))


def lanes_per_second(algo: Algorithm, configs: PyTree, seconds: float) -> float:
    """Measure valid environment steps per second of a population in its fastest strategy."""
    return max(choose(algo, configs, seconds / 4).steps_per_second.values())


def _check_knobs(knobs: Any, starts: Any) -> None:
    """Raise `ValueError` unless knobs have sequences of values, and starts are dictionaries."""
    checks.instance("knobs", knobs, Mapping, "a dictionary of the values of each setting")
    for name, values in knobs.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise checks.refuse(f"knobs[{name!r}]", "a sequence of values", values)
    is_sequence = isinstance(starts, Sequence) and not isinstance(starts, str)
    if not is_sequence or not starts or not all(isinstance(start, Mapping) for start in starts):
        raise checks.refuse("starts", "a sequence of dictionaries of settings", starts)

    for name, values in knobs.items():
        for settings in starts:
            if settings.get(name) not in values:
                raise ValueError(
                    f"a start has {name} = {settings.get(name)!r}, which is not among the values "
                    f"of that knob, {list(values)}"
                )


def _build_first(
    build: Callable[..., tuple[Algorithm, Any]], starts: Sequence[Settings]
) -> tuple[Algorithm, Any] | None:
    """Build the first start that is not refused; return None if all are."""
    for settings in starts:
        with contextlib.suppress(ValueError):
            return build(**settings)
    return None


# --- results of earlier calls --------------------------------------------------------------------


def _cache_path(cache: Path | bool | None) -> Path | None:
    """Return the file that keeps results, None for none."""
    if cache is None or cache is False:
        return None
    if cache is not True:
        return checks.path("cache", cache)
    directory = cache_directory()
    return None if directory is None else directory / "autotune.json"


def _cache_key(algo: Algorithm, config: Any, **arguments: Any) -> str:
    """Return a hash of the machine, versions, program and arguments of `autotune`."""
    manifest = manifests.describe(algo, config, {})
    names = ("algorithm", "env", "config", "versions", "hardware")
    key = {name: manifest[name] for name in names} | arguments | {"network": repr(algo.network)}
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=repr).encode()).hexdigest()


def _from_json(saved: Any, knobs: Knobs, starts: Sequence[Settings]) -> AutotuneResult | None:
    """Return a saved result with the values of knobs and starts, since JSON has no tuples.

    None if there is no result, or a damaged one: then the settings are measured again.
    """

    def original(name: str, value: Any) -> Any:
        given = [*knobs.get(name, ()), *(start[name] for start in starts if name in start)]
        for own in given:
            if json.dumps(own, default=repr) == json.dumps(value):
                return own
        raise ValueError(f"{name} = {value!r} is no setting to choose from")

    def settings(values: dict[str, Any]) -> Settings:
        return {name: original(name, value) for name, value in values.items()}

    try:
        saved = schema.check(saved, schema.MEASUREMENTS)
        trials = tuple(Measurement(settings(values), speed) for values, speed in saved["trials"])
        best = settings(saved["best"])
    except ValueError:
        return None
    return AutotuneResult(best, trials) if any(best == x.settings for x in trials) else None


def _read(path: Path | None) -> dict[str, Any]:
    """Return all saved results; none if there is no file or it is damaged."""
    try:
        saved = {} if path is None else schema.parse(path.read_bytes())
    except (OSError, ValueError):
        saved = {}
    return saved if isinstance(saved, dict) else {}


def _write(path: Path, results: dict[str, Any]) -> None:
    """Save all results, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(results, indent=1, default=repr) + "\n")
