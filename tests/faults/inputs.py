"""Odd input of every kind: it is taken, or refused by a named error, within some seconds.

A generator returns `Case`: what to call, and the words of which an error must have one. All runs in
the warm process, `MEMORY` more of which a case may take.
"""

from __future__ import annotations

import functools
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import jobs, odd_arguments, odd_files, storage
from faults.odd_values import Case, names
from faults.outcomes import SURVIVED, Kind, Outcome, Verdict
from faults.warm import WARM

MEMORY = 4 * 2**30  # bytes
GENERATORS: dict[str, tuple[Callable[[random.Random, Path], Case], tuple[str, ...]]] = {
    "config": (odd_arguments.config, ()),
    "space": (odd_arguments.space, ()),
    "scheduler": (odd_arguments.scheduler, ()),
    "env": (odd_arguments.env, ()),
    "run": (odd_arguments.run_arguments, ()),
    "sweep": (odd_arguments.sweep_arguments, ()),
    "command": (odd_arguments.command, ("run",)),
    "run-file": (odd_files.run_file, ("run",)),
    "sweep-file": (odd_files.sweep_file, ("sqlite-half",)),
    "study": (odd_files.study, ("sqlite-half", "journal-half")),
}
"""Generators, and the prepared directories whose copies they need."""


def try_input(name: str, rng: random.Random, directory: Path) -> Any:
    """Generate a case and call its function; return both in words."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    case = GENERATORS[name][0](rng, directory)
    print(case.what)
    status, fields = jobs.attempt(case.function, ())
    fields.pop("value", None)
    return {"what": case.what, "words": case.words, "is_bad": case.is_bad}, status, fields


def give(rng: random.Random, directory: Path, name: str) -> Outcome:
    """Give odd input, and say what came of it."""
    needed = GENERATORS[name][1]
    for prepared in needed:
        shutil.copytree(storage.prepared()[0] / prepared, directory / prepared)
    ended = WARM.call(try_input, name, rng, directory)
    if ended.status != 0:
        return Outcome(Verdict.UNNAMED_ERROR, ended.tail())
    case, status, fields = ended.value
    if status == 0 and case["is_bad"]:
        return Outcome(Verdict.SILENTLY_WRONG, f"took {case['what'][:500]}")
    if status == 0:
        return SURVIVED
    text = fields.get("text", ended.output if status == 2 else "")
    has_word = any(names(text, word) for word in case["words"])
    is_usage = status == 2 and "Traceback" not in ended.output
    if has_word and (is_usage or fields.get("is_documented")):
        return SURVIVED
    found = f"{fields.get('error')}: {text[:300]}"
    return Outcome(
        Verdict.UNNAMED_ERROR, f"{found} of {case['what'][:300]}\n{ended.output[-1500:]}"
    )


KINDS = tuple(
    Kind(f"input-{name}", functools.partial(give, name=name), per_round=60 if not needed else 20)
    for name, (_, needed) in GENERATORS.items()
)
