"""Odd content of the files of runs and sweeps, and of studies."""

from __future__ import annotations

import contextlib
import json
import math
import random
import sqlite3
from pathlib import Path
from typing import Any

from faults import storage
from faults.odd_values import Case
from jaxrl.files.schema import DIGEST

ODD_JSON: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 1e308, 10**30, math.nan, math.inf, "", "x", "é\0", [], [[]], {}, [None],
    {"a": {}}, "../../etc", "os:system", ["a", 1],
)  # fmt: skip
RAW = (
    b"", b"\xff\xfe", b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"a":' * 50_000, b"1e999", b"null",
    b"[]", b"{}", b'{"a": 1}{"a": 2}', b"\0" * 100, b"9" * 10_000, b'"x"', b'{"update": 1}\n',
)  # fmt: skip


def mutate(rng: random.Random, content: Any) -> Any:
    """Change a random part of JSON data in place; return the data."""
    node: Any = content
    parent: Any = None
    place: Any = None
    while isinstance(node, dict | list) and node and (parent is None or rng.random() < 0.75):
        parent, place = node, rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        node = parent[place]
    if parent is None:
        return rng.choice(ODD_JSON)
    if rng.random() < 0.25:
        del parent[place]
    else:
        parent[place] = rng.choice(ODD_JSON)
    return content


def spoil(rng: random.Random, path: Path) -> None:
    """Change a JSON file, or one line of it; a digest would give the change away."""
    if rng.random() < 0.2:
        path.write_bytes(rng.choice(RAW))
        return
    if path.suffix in (".jsonl", ".log"):
        lines = path.read_text().splitlines()
        i = rng.randrange(len(lines))
        lines[i] = json.dumps(mutate(rng, json.loads(lines[i])))
        path.write_text("\n".join(lines) + "\n")
    else:
        content = json.loads(path.read_text())
        del content[DIGEST]
        path.write_text(json.dumps(mutate(rng, content)))


def run_file(rng: random.Random, directory: Path) -> Case:
    """Read the odd files of a run."""
    name = rng.choice(("manifest.json", "manifest.json", "metrics.jsonl", "summary.json"))
    spoil(rng, directory / "run" / name)
    reader = rng.choice(
        (lambda run: storage.train(run, storage.WHOLE, storage.SEED, 0.05), storage.act,
         lambda run: storage.compare(run, run), page)
    )  # fmt: skip
    return Case(f"{name} {reader}", (str(directory / "run"),), lambda: reader(directory / "run"))


def page(run_dir: Path) -> None:
    """Write the page of a run."""
    from jaxrl.analysis import comparison, comparison_page

    groups = comparison.group_runs([comparison.read_run(run_dir)])
    comparison_page.write_comparison(groups, run_dir / "page.html")


def sweep_file(rng: random.Random, directory: Path) -> Case:
    """Read an odd sweep.json."""
    sweep_dir = directory / "sqlite-half"
    spoil(rng, sweep_dir / "sweep.json")
    return Case("sweep.json", (str(sweep_dir),), lambda: storage.sweep(sweep_dir, None))


def study(rng: random.Random, directory: Path) -> Case:
    """Resume a sweep on an odd study."""
    kind = rng.choice(("sqlite", "journal"))
    sweep_dir = directory / f"{kind}-half"
    url, what = storage.url_of(sweep_dir, kind), "a line of the journal"
    if kind == "journal":
        spoil(rng, sweep_dir / "study.log")
    else:
        what = spoil_database(rng, sweep_dir / "study.db")
    words = (str(sweep_dir), "study 'study'")
    return Case(f"{kind}: {what}", words, lambda: storage.sweep(sweep_dir, url))


def spoil_database(rng: random.Random, path: Path) -> str:
    """Change a random table of a database; return how."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        query = "select name from sqlite_master where type = 'table' order by name"
        table = rng.choice([row[0] for row in database.execute(query).fetchall()])
        columns = [row[1] for row in database.execute(f"pragma table_info({table})").fetchall()]
        column, value = (
            rng.choice(columns),
            rng.choice((None, "", "x", -1, 10**9, 1e300, "[[", b"x")),
        )
        change = rng.choice(
            (f"delete from {table}", f"drop table {table}", f"update {table} set {column} = ?",
             f"update {table} set {column} = ? where rowid % 2",
             f"alter table {table} rename column {column} to other")
        )  # fmt: skip
        database.execute("pragma foreign_keys = off")
        with contextlib.suppress(sqlite3.DatabaseError):  # what the database itself refuses
            database.execute(change, (value,) if "?" in change else ())
        return f"{change} {value!r}"
