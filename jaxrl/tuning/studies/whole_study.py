"""A whole study in the form of `sweep.json`: the trials of all workers together.

A study's events tell when a phase of a trial began and ended, but not on which lane. So each phase
is a bar on the first lane of its worker that was free.
"""

from __future__ import annotations

import collections
import datetime
from typing import Any

import numpy as np

from jaxrl.config import with_current_names
from jaxrl.files import schema
from jaxrl.files.json_values import score_to_json
from jaxrl.files.urls import redact_url
from jaxrl.tuning.ranking import objective_names
from jaxrl.tuning.samplers.optional_optuna import import_optuna
from jaxrl.tuning.studies.damage import DamagedStudyError, explain_storage_failure
from jaxrl.tuning.studies.events import REPORTED, event_of, log_name
from jaxrl.tuning.studies.storage import SEARCH, check_file, close_storage, open_storage
from jaxrl.tuning.studies.stored_trials import (
    WORKER,
    changes,
    has_begun,
    indexed_trials,
    objectives,
    owner,
    valid_trials,
)
from jaxrl.tuning.timeline import Span, occupancy

SEARCHED: schema.Table = {
    "algorithm": schema.Field(schema.TEXT),
    "env": schema.Field(schema.TEXT),
    "scheduler": schema.Field({
        "name": schema.Field(schema.TEXT),
        "num_trials": schema.Field(schema.COUNT),
        "num_phases": schema.Field(schema.COUNT),
    }),
    "phase": schema.Field({
        "length": schema.Field(schema.COUNT),
        "unit": schema.Field(schema.TEXT),
    }),
    "space": schema.Field(schema.OBJECT),
    "objective": schema.Field(schema.OBJECTIVE, required=False),
}  # fmt: skip
"""What a study's attribute `SEARCH` must have."""
STATUS = {"WAITING": "paused", "RUNNING": "running", "PRUNED": "stopped", "COMPLETE": "completed"}
"""The status in `sweep.json` of a trial that has begun, by its state in a study."""


def read_study(url: str, name: str | None = None) -> dict[str, Any]:
    """Return what a study holds, in the form of `sweep.json`.

    Args:
      url: of its storage.
      name: of the study; None if the storage has one study only.

    Returns:
      What all its workers had in common, and `trials`, `spans`, `seconds`, `lanes`, `occupancy`;
      `owners`, the worker that trained each trial last; `workers`, the number of trials by
      worker; `lost`, how many trials returned to the queue
      because their worker died.

    Raises:
      ValueError: if there is no such study, or it is damaged.
      OSError: if the storage cannot be read.
      ImportError: without Optuna, or the database's driver.
    """
    optuna = import_optuna()
    check_file(url)
    storage = open_storage(url, heartbeat_seconds=60, read_only=True)
    try:
        with explain_storage_failure(url, name or "?"):
            found = optuna.get_all_study_names(storage)
        names = [each for each in found if each not in map(log_name, found)]
        if name is None and len(names) == 1:
            name = names[0]
        if name is None or name not in names:
            raise ValueError(
                f"study_name (--study) must be one of {sorted(names)}, the studies at "
                f"{redact_url(url)}, got {name!r}"
            )
        with explain_storage_failure(url, name):
            study = optuna.load_study(study_name=name, storage=storage)
            events: list[Any] = []
            if log_name(name) in found:
                log = optuna.load_study(study_name=log_name(name), storage=storage)
                events = log.get_trials(deepcopy=False)
            return _describe(study, events) | {"study": name, "storage": redact_url(url)}
    finally:
        close_storage(storage)


def _describe(study: Any, events: list[Any]) -> dict[str, Any]:
    """Return a study and its stored events in the form of `sweep.json`, without its name."""
    search = with_current_names(study.user_attrs.get(SEARCH))
    try:
        search = schema.check(search, SEARCHED)
    except ValueError as error:
        raise DamagedStudyError(f"its search is not one of jaxrl's: {error}") from error
    stored = indexed_trials(study)
    valid = valid_trials(stored, search["scheduler"]["num_trials"])
    begun = {index: trial for index, trial in valid.items() if has_begun(trial)}
    owners = {index: owner(trial) or "?" for index, trial in begun.items()}
    trials = [_trial(index, trial, search) for index, trial in sorted(begun.items())]
    _check_changes(trials)
    spans = _spans(events)
    lanes = 1 + max((span.lane for span in spans), default=0)
    return search | {
        "trials": trials,
        "spans": [span._asdict() for span in spans],
        "seconds": max((span.end for span in spans), default=0.0),
        "lanes": lanes,
        "occupancy": occupancy(spans, lanes) if spans else 0.0,
        "owners": owners,
        "workers": dict(collections.Counter(owners.values())),
        # Trials that several workers added at once fail as well, but nobody ran them.
        "lost": sum(t.state.name == "FAIL" and WORKER in t.user_attrs for _, t in stored),
    }


def _trial(index: int, trial: Any, search: dict[str, Any]) -> dict[str, Any]:
    """Return a trial as `sweep.json` has it."""
    stored, scores = _values(trial, search["space"]), trial.intermediate_values
    num_phases = search["scheduler"]["num_phases"]
    if len(scores) > num_phases:
        raise DamagedStudyError(f"trial {trial.number} has scores of {len(scores)} phases")
    status = STATUS[trial.state.name]
    if status == "stopped" and len(scores) == num_phases:  # the last one is NaN
        status = "completed"
    changed, names = changes(trial), objective_names(search)
    return {
        "trial": index,
        "values": stored,
        "scores": [score_to_json(np.float64(scores[phase])) for phase in sorted(scores)],
        "status": status,
        **({"objectives": objectives(trial, names, len(scores))} if names else {}),
        **({"changes": changed} if changed else {}),
    }


def _check_changes(trials: list[dict[str, Any]]) -> None:
    """Raise `DamagedStudyError` if the trials that an explorer changed have no whole lineage."""
    known = {trial["trial"] for trial in trials}
    if not any("changes" in trial for trial in trials):
        return
    for trial in trials:
        parents = {change["parent"] for change in trial.get("changes", [])}
        if len(trial.get("changes", [])) < len(trial["scores"]) - 1 or not parents <= known:
            raise DamagedStudyError(f"the changes of trial {trial['trial']} are not complete")


def _values(trial: Any, space: dict[str, Any]) -> dict[str, Any]:
    """Return the values that a trial has stored, by name; of choices, those of the space."""
    values = {name: trial.params[name] for name in sorted(space) if name in trial.params}
    for name, value in values.items():
        choices = getattr(trial.distributions[name], "choices", ())
        searched = space[name].get("values", ())
        if len(searched) == len(choices) > 0:
            values[name] = searched[choices.index(value)]
    return values


def _spans(events: list[Any]) -> list[Span]:
    """Return a span for each reported phase, in seconds from the beginning of the first.

    Args:
      events: as they are stored; both ends of a phase have the time of its worker's clock.
    """
    began: dict[int, datetime.datetime] = {}  # the phase that each trial trains, by its number
    last = {}  # of a trial that was repeated, because its worker died
    for stored in events:
        event, now = event_of(stored), stored.datetime_complete
        if event.kind == REPORTED and event.number in began:
            last[event.trial, event.phases] = began[event.number], now, event
        began[event.number] = now
    phases = sorted(last.values(), key=lambda phase: phase[:2])
    lanes: list[tuple[str, int, datetime.datetime]] = []  # worker, last trial, and its end
    spans = []
    for begin, end, event in phases:
        own = [k for k, (worker, *_) in enumerate(lanes) if worker == event.worker]
        free = [k for k in own if lanes[k][2] <= begin]
        goes_on = (event.trial, begin)
        lane = min(free, key=lambda k: lanes[k][1:] != goes_on, default=len(lanes))
        lanes[lane : lane + 1] = [(event.worker, event.trial, end)]
        seconds = ((moment - phases[0][0]).total_seconds() for moment in (begin, end))
        spans.append(Span(lane, event.trial, event.phases, *seconds))
    return sorted(spans, key=lambda span: span.end)
