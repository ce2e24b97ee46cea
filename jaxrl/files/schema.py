"""The JSON files that runs leave: which fields each has, of which kind, and a digest of them.

A file may be damaged, edited, or of something else. Whatever it holds, reading it returns values of
the kinds below or raises a `ValueError` that names the file and the field. Files that `write` wrote
are read as they were written or not at all.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.files.whole import write_whole

MAX_DEPTH = 32
"""The deepest nesting of values; runs write less than 10 levels."""
DIGEST = "digest"
"""The field with the digest of all others. Who edits a file deletes it."""
LARGEST = 2**63 - 1
"""The largest integer that arrays hold."""


class Kind(NamedTuple):
    """A kind of value: its name in errors, and the function that knows it."""

    name: str
    holds: Callable[[Any], bool]


class Field(NamedTuple):
    """A field of an object: its kind or the table of its own fields, and whether it must exist."""

    kind: Kind | Table
    required: bool = True
    default: Any = None
    """The value where an optional field is missing, because an older version wrote the file; None
    leaves it missing."""


Table = Mapping[str, Field]
"""The fields of an object by name. An object may have others, which newer versions wrote."""


def is_integer(value: Any, least: int = -LARGEST) -> bool:
    """Return whether a value is an integer that arrays hold, and at least `least`."""
    return type(value) is int and least <= value <= LARGEST


def is_number(value: Any) -> bool:
    """Return whether a value is a number that arrays hold; NaN and infinities are."""
    return type(value) is float or is_integer(value)


def is_measurement(value: Any) -> bool:
    """Return whether a value is a list of settings and their speed."""
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and isinstance(value[0], dict) and is_number(value[1])


def none_or(kind: Kind) -> Kind:
    """Return the kind of values that are null or of another kind."""
    return Kind(f"{kind.name} or null", lambda value: value is None or kind.holds(value))


def list_of(kind: Kind) -> Kind:
    """Return the kind of lists whose elements are of one kind."""
    return Kind(
        f"a list, each element {kind.name}",
        lambda value: isinstance(value, list) and all(map(kind.holds, value)),
    )


def object_with(table: Table) -> Kind:
    """Return the kind of objects that have the fields of a table."""
    required = ", ".join(name for name, field in table.items() if field.required)

    def holds(value: Any) -> bool:
        try:
            check(value, table)
        except ValueError:
            return False
        return True

    return Kind(f"an object with {required}", holds)


ANY = Kind("any value", lambda value: True)
TEXT = Kind("a text", lambda value: isinstance(value, str))
SWITCH = Kind("true or false", lambda value: isinstance(value, bool))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
NUMBER = Kind("a number", is_number)
INDEX = Kind("an integer >= 0", lambda value: is_integer(value, 0))
COUNT = Kind("an integer >= 1", lambda value: is_integer(value, 1))
OBJECTIVE = Kind(
    "a text or a list of texts",
    lambda value: all(map(TEXT.holds, value if isinstance(value, list) else [value])),
)
FINAL_SCORE = Kind('a number or "-inf"', lambda value: value == "-inf" or is_number(value))
SCORE = Kind('a number, null or "-inf"', none_or(FINAL_SCORE).holds)

ORIGIN: Table = {
    "command": Field(TEXT, required=False),
    "created": Field(TEXT, required=False),
    "versions": Field(OBJECT, required=False),
    "git_commit": Field(none_or(TEXT), required=False),
    "hardware": Field(OBJECT, required=False),
}
RESUMPTIONS = Field(list_of(object_with({**ORIGIN, "command": Field(TEXT)})), required=False)
MANIFEST: Table = {
    "run_id": Field(TEXT, required=False),
    "algorithm": Field(TEXT),
    "env": Field({
        "id": Field(TEXT),
        "num_envs": Field(COUNT),
        "options": Field(OBJECT, required=False, default={}),
    }),
    "config": Field(OBJECT),
    "custom_network": Field(SWITCH, required=False, default=False),
    "num_devices": Field(COUNT, required=False),
    "seed": Field(INDEX, required=False),
    "total_steps": Field(COUNT, required=False),
    "log_every": Field(COUNT, required=False),
    "num_evaluations": Field(INDEX, required=False),
    "eval_episodes": Field(COUNT, required=False),
    "eval_greedy": Field(SWITCH, required=False, default=False),
    "label": Field(none_or(TEXT), required=False),
    "init_from": Field(none_or(OBJECT), required=False),
    "trial": Field(INDEX, required=False),
    "resumptions": RESUMPTIONS,
    **ORIGIN,
}  # fmt: skip
"""`manifest.json` of a run; who reads it names the optional fields that it needs."""
SUMMARY: Table = {
    "interrupted": Field(SWITCH),
    "mean_return": Field(none_or(NUMBER), required=False),
}
"""`summary.json` of a run."""
CHANGE: Table = {
    "parent": Field(INDEX),
    "values": Field(OBJECT),
}
"""What a trial of a sweep continued with after a phase, if an explorer changes trials."""
TRIAL: Table = {
    "trial": Field(INDEX),
    "values": Field(OBJECT),
    "scores": Field(list_of(SCORE)),
    "status": Field(TEXT),
    "objectives": Field(list_of(list_of(SCORE)), required=False),
    "changes": Field(list_of(object_with(CHANGE)), required=False),
}
FINAL: Table = {
    "trial": Field(INDEX),
    "values": Field(OBJECT),
    "scores": Field(list_of(FINAL_SCORE)),
    "score": Field(FINAL_SCORE),
    "search": Field(FINAL_SCORE),
    "objectives": Field(list_of(FINAL_SCORE), required=False),
}
"""A setting of a sweep's finals."""
SWEEP: Table = {
    "run_id": Field(TEXT),
    "algorithm": Field(TEXT),
    "env": Field(TEXT),
    "num_envs": Field(COUNT),
    "env_options": Field(OBJECT),
    "config": Field(OBJECT),
    "seed": Field(INDEX),
    "scheduler": Field(OBJECT),
    "max_steps": Field(none_or(NUMBER), required=False),
    "max_seconds": Field(none_or(NUMBER), required=False),
    "objective": Field(OBJECTIVE, required=False),
    "sampler": Field(TEXT),
    "lanes": Field(COUNT),
    "phase": Field(OBJECT),
    "space": Field(OBJECT),
    "storage": Field(none_or(TEXT), required=False),
    "study": Field(none_or(TEXT), required=False),
    "worker": Field(none_or(TEXT), required=False),
    "agents_dir": Field(none_or(TEXT), required=False),
    **ORIGIN,
    "resumptions": RESUMPTIONS,
    "trials": Field(list_of(object_with(TRIAL)), required=False, default=[]),
    "finals": Field(list_of(object_with(FINAL)), required=False),
}
"""`sweep.json` of a sweep."""
GAMES: Table = {
    "games": Field(COUNT),
    "points_per_game": Field(NUMBER),
    "points_per_game_std": Field(NUMBER),
    "game_length": Field(NUMBER),
    "points_per_step": Field(NUMBER),
}
CAPTION: Table = {
    "caption": Field(TEXT),
    "numbers": Field(none_or(object_with(GAMES)), required=False),
}
"""The file with a video's caption, beside the video."""
MEASUREMENTS: Table = {
    "best": Field(OBJECT),
    "trials": Field(list_of(Kind("[settings, speed]", is_measurement))),
}
"""A saved result of `jaxrl.autotune`."""


def read(path: Path, table: Table, rename: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return the object in a JSON file, with defaults for missing fields.

    Args:
      rename: gives fields of older versions their current names, before the check.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is damaged; the message names the file and the field.
    """
    try:
        value = parse(path.read_bytes())
        if isinstance(value, dict) and DIGEST in value and value.pop(DIGEST) != _digest(value):
            raise ValueError(
                f"its content is not what its {DIGEST!r} says (if you changed it yourself, delete "
                f"its {DIGEST!r})"
            )
        return check(rename(value), table)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}. Copy the intact file back") from error


def write(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object with its digest to a JSON file, whole or not at all."""
    write_whole(path, json.dumps({**value, DIGEST: _digest(value)}, indent=1) + "\n")


def _digest(value: Mapping[str, Any]) -> str:
    """Return the digest of an object, which does not depend on the order of its fields."""
    as_read = json.loads(json.dumps(value))
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def parse(data: bytes) -> Any:
    """Return the value of a JSON text in UTF-8.

    Raises:
      ValueError: if it is something else, or nested deeper than `MAX_DEPTH`.
    """
    too_deep = f"its values are nested deeper than {MAX_DEPTH} levels"
    try:
        value = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError(too_deep) from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return value
    raise ValueError(too_deep)


def check(value: Any, table: Table, where: str = "") -> dict[str, Any]:
    """Return an object with defaults for missing fields.

    Args:
      where: name of the field that the object is the value of, for errors.

    Raises:
      ValueError: that names the first bad field.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where or 'it'} must be an object, got {reprlib.repr(value)}")
    required = [name for name, field in table.items() if field.required]
    if missing := [f"{where}.{name}" if where else name for name in required if name not in value]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    checked = dict(value)
    for name, field in table.items():
        place = f"{where}.{name}" if where else name
        if name not in value:
            if field.default is not None:
                checked[name] = field.default
        elif not isinstance(field.kind, Kind):
            checked[name] = check(value[name], field.kind, place)
        elif not field.kind.holds(value[name]):
            raise ValueError(f"{place} must be {field.kind.name}, got {reprlib.repr(value[name])}")
    return checked


def require(path: Path, value: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise `ValueError` unless the object of a file has all named fields."""
    if missing := [name for name in names if name not in value]:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}; give directories that jaxrl.run wrote"
        )


def _children(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, dict) else value if type(value) is list else ()
