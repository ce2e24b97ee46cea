"""A campaign: damage at random for some minutes, counted by kind, with every failure's rerun."""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from faults import jobs
from faults.outcomes import Damage, Kind, Outcome, Result, Verdict
from faults.soak import soak
from jaxrl.training.run_dir.manifest import provenance

MODULES = (
    "kills", "disks", "counters",
    "storage", "simulators", "numerics", "inputs",
)  # fmt: skip
"""The modules of this package that have kinds."""


def find_kinds() -> dict[str, Kind]:
    """Return all kinds by name."""
    modules = [importlib.import_module(f"faults.{name}") for name in MODULES]
    kinds = [kind for module in modules for kind in module.KINDS]
    assert len({kind.name for kind in kinds}) == len(kinds)
    return {kind.name: kind for kind in kinds}


def run_case(kind: Kind, seed: int) -> Result:
    """Run a case in a directory of its own, and end the processes that it leaves behind."""
    began, before = time.monotonic(), set(jobs.descendants(os.getpid()))
    directory = Path(tempfile.mkdtemp(prefix="case-", dir=jobs.scratch_directory()))
    directory.chmod(0o755)
    signal.signal(signal.SIGALRM, _time_is_over)
    signal.setitimer(signal.ITIMER_REAL, kind.seconds)
    try:
        rng = random.Random(f"{kind.name}:{seed}")
        outcome = kind.run(rng, directory, *kind.variant(seed))
    except Damage as damage:
        outcome = damage.outcome
    except Exception:
        outcome = Outcome(Verdict.UNNAMED_ERROR, f"in the case: {traceback.format_exc()}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    left = jobs.end_leftovers(before)
    if left and outcome.verdict == Verdict.SURVIVED:
        outcome = Outcome(Verdict.HUNG, f"left processes behind: {', '.join(left)}")
    shutil.rmtree(directory, ignore_errors=True)
    return Result(kind.name, seed, outcome, time.monotonic() - began)


def _time_is_over(*_: Any) -> NoReturn:
    raise Damage(Verdict.HUNG, f"the case did not end in time:\n{traceback.format_stack()[-3:]}")


def draw(kinds: list[Kind], seed: int) -> Iterator[tuple[Kind, int]]:
    """Yield kinds with seeds of cases without end: all kinds in random order, again and again.

    Each round begins with a case of every kind; the other turns are of those with more cases.
    """
    rng = random.Random(seed)
    while True:
        for turn in range(max(kind.per_round for kind in kinds)):
            due = [kind for kind in kinds if turn < kind.per_round]
            for kind in rng.sample(due, len(due)):
                yield kind, rng.randrange(2**31)


def summary(results: list[Result], kinds: list[Kind], **settings: Any) -> dict[str, Any]:
    """Return what the file of results holds."""
    tried = {
        kind.name: {kind.variant(r.seed) for r in results if r.kind == kind.name} for kind in kinds
    }
    names = ["tried", *(str(verdict) for verdict in Verdict)]
    counts: dict[str, collections.Counter[str]] = {}
    for result in results:
        counter = counts.setdefault(result.kind, collections.Counter(dict.fromkeys(names, 0)))
        counter["tried"] += 1
        counter[result.outcome.verdict] += 1
    return {
        **settings,
        "cases": len(results),
        "killed": dict(jobs.KILLED),
        "counts": {kind: dict(counter) for kind, counter in sorted(counts.items())},
        "variants": {
            kind.name: {"tried": len(tried[kind.name]), "of": len(kind.variants)}
            for kind in kinds if kind.variants
        },
        "failures": [
            {"kind": r.kind, "seed": r.seed, "rerun": r.rerun, "verdict": r.outcome.verdict,
             "seconds": round(r.seconds, 1), "detail": r.outcome.detail}
            for r in results if r.is_failure
        ],
        "skipped": {
            r.kind: r.outcome.detail for r in results if r.outcome.verdict == Verdict.SKIPPED
        },
    }  # fmt: skip


def show(result: Result) -> None:
    """Print a line of a result, and the detail of a failure."""
    verdict = result.outcome.verdict
    print(f"{result.seconds:6.1f} s  {verdict:14}  {result.kind} {result.seed}", flush=True)
    if result.is_failure:
        print(f"    {result.rerun}\n    " + result.outcome.detail.replace("\n", "\n    "))


def run_campaign(
    kinds: list[Kind], minutes: float, seed: int, seeds: Callable[[Kind], Iterable[int]] | None
) -> dict[str, Any]:
    """Run cases for some minutes, or those with certain `seeds`; return what `summary` does."""
    deadline, results = time.monotonic() + 60 * minutes, list[Result]()
    cases = draw(kinds, seed)
    if seeds is not None:
        cases = ((kind, case) for kind in kinds for case in seeds(kind))
    for kind, case in cases:
        if seeds is None and time.monotonic() > deadline:
            break
        results.append(run_case(kind, case))
        show(results[-1])
    content = summary(results, kinds, seed=seed, minutes=minutes)
    print(f"{len(results)} cases, {len(content['failures'])} failures")
    return content


def main() -> int:
    """Run the command; return 1 if there was any failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file of the results, JSON")
    parser.add_argument("--only", action="append", metavar="KIND", help="may be repeated")
    parser.add_argument("--case-seed", type=int, help="run one case of each kind with this seed")
    parser.add_argument("--once", action="store_true", help="run each kind once, whatever it takes")
    parser.add_argument("--each", action="store_true", help="run each variant of a kind once")
    parser.add_argument("--soak", action="store_true", help="watch what long programs take instead")
    arguments = parser.parse_args()
    jobs.prepare()
    kinds = find_kinds()
    if unknown := set(arguments.only or ()) - set(kinds):
        parser.error(f"no kinds {sorted(unknown)}; there are {', '.join(kinds)}")
    if arguments.soak:
        content = soak(arguments.minutes, arguments.out)
        is_failure = any(content["growth"].values())
    else:
        chosen = [kinds[name] for name in arguments.only or kinds]
        seeds: Callable[[Kind], Iterable[int]] | None = None
        if arguments.case_seed is not None:
            seeds = lambda _: [arguments.case_seed]  # noqa: E731
        elif arguments.each:
            seeds = lambda kind: range(len(kind.variants) or 1)  # noqa: E731
        elif arguments.once:
            seeds = lambda _: [0]  # noqa: E731
        content = run_campaign(chosen, arguments.minutes, arguments.seed, seeds)
        is_failure = bool(content["failures"])
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(content | provenance(), indent=2) + "\n")
    return int(is_failure)
