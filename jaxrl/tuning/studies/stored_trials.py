"""The trials of a study as they are stored: check them, number them, and read what they say.

This file only reads; `jaxrl.tuning.studies.trial_queue` and `study` write.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrl.files import schema
from jaxrl.files.json_values import score_to_json, values_to_json
from jaxrl.tuning.samplers.optional_optuna import import_optuna
from jaxrl.tuning.studies.damage import LONGEST, DamagedStudyError, find_damage

INDEX = "index"
"""User attribute of a trial: its index from 0 to N - 1."""
WORKER = "worker"
"""User attribute of a trial: the name of the worker that runs it."""
CLAIMED_BY = "wanted by "
"""User attribute of a trial, followed by a worker's name: that worker was about to run it."""
PAUSED = "paused after"
"""User attribute of a trial: how many phases it had reported when it paused last."""
CHANGE = "before phase "
"""User attribute of a trial, followed by a phase from 1: the trial as whose agent it went on before
that phase, its `parent`, and its `values` from there on. Only explorers change trials."""
OBJECTIVES = "scores of phase "
"""User attribute of a trial, followed by a phase from 0: its scores by name, if there are several
objectives. The first one is the phase's intermediate value, too."""
REPEATS = "failed_trial"
"""System attribute that Optuna gives to a repeated trial: the number of the first one."""


# --- checks --------------------------------------------------------------------------------------


def check_trial(trial: Any) -> None:
    """Raise `DamagedStudyError` if a trial holds what no sweep stores."""
    with find_damage():  # parameters must be of their distributions, and values of numbers
        import_optuna().trial.create_trial(
            state=trial.state,
            values=trial.values,
            params=trial.params,
            distributions=trial.distributions,
        )
    scores, attributes = trial.intermediate_values, trial.user_attrs
    first, has_ended = trial.system_attrs.get(REPEATS, 0), trial.state.is_finished()
    is_claimed = WORKER in attributes or any(map(_is_claim, attributes))
    rules = {
        f"the number {trial.number!r}": schema.is_integer(trial.number, 0),
        f"the phases {list(scores)}": all(schema.is_integer(phase, 0) for phase in scores),
        f"the scores {list(scores.values())}": all(map(schema.is_number, scores.values())),
        f"the values {trial.values}": trial.values is None or len(trial.values) == 1,
        f"the index {attributes.get(INDEX)!r}": schema.is_integer(attributes.get(INDEX, 0), 0),
        f"the worker {attributes.get(WORKER)!r}": isinstance(attributes.get(WORKER, ""), str),
        f"{PAUSED} {attributes.get(PAUSED)!r}": schema.is_integer(attributes.get(PAUSED, 1), 1),
        f"{REPEATS} {first!r}": schema.is_integer(first, 0),
        "no time of its end": isinstance(trial.datetime_complete, datetime.datetime) == has_ended,
        "no worker, but runs": is_claimed or trial.state.name != "RUNNING",
    }
    for what, holds in rules.items():
        if not holds:
            raise DamagedStudyError(f"trial {trial.number!r} has {what}"[:LONGEST])


def check_resumed(
    trials: list[tuple[int, Any]],
    saved: Sequence[dict[str, Any]],
    listed: Sequence[dict[str, Any]],
    values: Callable[[Any], dict[str, Any]],
) -> None:
    """Raise `DamagedStudyError` unless a study holds what a resumed sweep knows of its trials.

    Scores and values are stored before a checkpoint is saved. A trial that was lost with its worker
    may differ, and so may its repetition.

    Args:
      saved: the trials of the sweep's checkpoint, as `sweep.json` has them.
      listed: those of `sweep.json`, which may be newer or older; only their existence is checked.
      values: returns the hyperparameters that a trial has stored.
    """
    known = {each["trial"] for each in (*saved, *listed)}
    if lacking := sorted(known - {index for index, _ in trials}):
        raise DamagedStudyError(f"it lacks the trials {lacking}, which the sweep has begun")
    stored = {index: trial for index, trial in trials if REPEATS not in trial.system_attrs}
    for each in saved:
        trial = stored[each["trial"]]
        if trial.state.name == "FAIL":
            continue
        scores = [
            score_to_json(np.float32(trial.intermediate_values.get(phase, math.nan)))
            for phase in range(len(each["scores"]))
        ]
        found = {
            "status": each["status"] if has_begun(trial) else "waiting",
            "scores": scores,
            "values": values_to_json(values(trial)),
        }
        for name, value in json.loads(json.dumps(found)).items():
            if value != (expected := json.loads(json.dumps(each[name]))):
                raise DamagedStudyError(
                    f"trial {trial.number} has the {name} {value}, but the checkpoint {expected}"
                )


# --- what trials say -----------------------------------------------------------------------------


class Indices:
    """The indices of a study's trials, which are added in the order of their numbers.

    The index is the trial's position among the trials that repeat no other; a repeated trial has
    the index of the first one. So workers that add trials at the same time get different indices.
    """

    def __init__(self) -> None:
        self._of_first: dict[int, int] = {}
        self._num_trials = 0

    def __len__(self) -> int:
        return len(self._of_first)

    def add(self, trial: Any) -> int:
        """Return the index of the next trial.

        Raises:
          DamagedStudyError: if a trial is missing before it, or it has the index of another.
        """
        number = self._num_trials
        if trial.number != number:
            raise DamagedStudyError(f"it lacks trial {number}")
        self._num_trials += 1
        if REPEATS not in trial.system_attrs:
            self._of_first[number] = len(self)
        first = trial.system_attrs.get(REPEATS, number)
        index = self._of_first.get(first)
        if index is None or trial.user_attrs.get(INDEX, index) != index:
            raise DamagedStudyError(
                f"trial {number} has the index {trial.user_attrs.get(INDEX)!r}, but trial {first}, "
                f"which it repeats or is, {index}"
            )
        return index


def indexed_trials(study: Any) -> list[tuple[int, Any]]:
    """Return all trials of a study in the order of their numbers, each after its index.

    Raises:
      DamagedStudyError: if a trial is missing, or has the index of another.
    """
    indices = Indices()
    return [(indices.add(trial), trial) for trial in study.get_trials(deepcopy=False)]


def valid_trials(trials: list[tuple[int, Any]], num_trials: int) -> dict[int, Any]:
    """Return the trial that counts of each index below `num_trials`.

    Failed trials were lost with their worker and don't count. If two workers repeated the same
    trial, the repetition with the smaller number counts.
    """
    valid: dict[int, Any] = {}
    for index, trial in trials:
        if trial.state.name != "FAIL" and index < num_trials:
            valid.setdefault(index, trial)
    return valid


def paused_after(trial: Any) -> int:
    """Return after how many phases a trial paused last; 0 if it never did."""
    return trial.user_attrs.get(PAUSED, 0)


def changes(trial: Any) -> list[dict[str, Any]]:
    """Return what an explorer changed before each phase of a trial but the first.

    Raises:
      DamagedStudyError: if they are something else.
    """
    found: list[dict[str, Any]] = []
    while (change := trial.user_attrs.get(f"{CHANGE}{len(found) + 1}")) is not None:
        try:
            found.append(schema.check(change, schema.CHANGE))
        except ValueError as error:
            raise DamagedStudyError(f"trial {trial.number} has a bad change: {error}") from error
    return found


def objectives(trial: Any, names: Sequence[str], num_phases: int) -> list[list[Any]]:
    """Return the scores of each of several objectives in a trial's first phases.

    Raises:
      DamagedStudyError: if the trial does not hold them.
    """
    stored = [trial.user_attrs.get(f"{OBJECTIVES}{phase}") for phase in range(num_phases)]
    if stored and stored[-1] is None and not trial.state.is_finished():
        # Databases read a trial's attributes before its scores. Both were stored in between.
        stored[-1] = dict.fromkeys(names)
    table = {name: schema.Field(schema.SCORE) for name in names}
    try:
        rows = [schema.check(row, table) for row in stored]
    except ValueError as error:
        raise DamagedStudyError(f"trial {trial.number} has bad objectives: {error}") from error
    return [[row[name] for row in rows] for name in names]


def has_begun(trial: Any) -> bool:
    """Return whether a trial has trained; a paused one waits again."""
    return trial.state.name != "WAITING" or PAUSED in trial.user_attrs


def owner(trial: Any) -> str | None:
    """Return the name of the worker that runs a trial, None if nobody does.

    If the worker died before it stored its name, it is the only one that claimed the trial.
    """
    claims = [name.removeprefix(CLAIMED_BY) for name in trial.user_attrs if _is_claim(name)]
    return trial.user_attrs.get(WORKER, claims[0] if len(claims) == 1 else None)


def trials_to_resume(
    trials: list[tuple[int, Any]], num_trials: int, worker: str
) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return a worker's trials from before its restart: those to run again, those that ended.

    A worker that is alone also runs those again that ended or paused after its last checkpoint, and
    comes to the same decisions and agents. Where others take part, what has ended stays so, and any
    worker may continue what has paused.
    """
    is_alone = runs_alone(trials, worker)
    own = {
        index: trial
        for index, trial in valid_trials(trials, num_trials).items()
        if owner(trial) == worker and has_begun(trial)
    }
    again = {i: t for i, t in own.items() if is_alone or t.state.name == "RUNNING"}
    return again, {i: t for i, t in own.items() if t.state.is_finished() and i not in again}


def runs_alone(trials: list[tuple[int, Any]], worker: str) -> bool:
    """Return whether no other worker has taken part in a study."""
    return all(owner(trial) in (None, worker) for _, trial in trials if has_begun(trial))


def without_owner(user_attrs: dict[str, Any]) -> dict[str, Any]:
    """Return a trial's user attributes without those that name its worker."""
    return {k: v for k, v in user_attrs.items() if k != WORKER and not _is_claim(k)}


def _is_claim(attribute: str) -> bool:
    return attribute.startswith(CLAIMED_BY)
