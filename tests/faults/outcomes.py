"""Kinds of faults, their cases and what comes of them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable


class Verdict(enum.StrEnum):
    """What came of a case."""

    SURVIVED = "survived"
    LOST = "lost"
    SILENTLY_WRONG = "silently wrong"
    UNNAMED_ERROR = "unnamed error"
    HUNG = "hung"
    SKIPPED = "skipped"


FAILURES = (Verdict.LOST, Verdict.SILENTLY_WRONG, Verdict.UNNAMED_ERROR, Verdict.HUNG)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a case, in a word and in detail."""

    verdict: Verdict
    detail: str = ""


SURVIVED = Outcome(Verdict.SURVIVED)


class Damage(Exception):
    """Ends a case with an outcome."""

    def __init__(self, verdict: Verdict, detail: str):
        super().__init__(detail)
        self.outcome = Outcome(verdict, detail)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault."""

    name: str
    run: Callable[..., Outcome]
    """`run(rng, directory)` does the damage in an empty directory; `run(rng, directory, variant)`
    of a kind with variants."""
    seconds: float = 240.0
    """The time that a case may take, at most."""
    per_round: int = 1
    """Cases in a round of all kinds: more where they are quick."""
    variants: tuple[str, ...] = ()
    """What can be counted among the cases; `--each` tries each of them once."""

    def variant(self, seed: int) -> tuple[str, ...]:
        """Return the variant of a case; nothing of a kind without variants."""
        return (self.variants[seed % len(self.variants)],) if self.variants else ()


@dataclasses.dataclass(frozen=True)
class Result:
    """A case and its outcome."""

    kind: str
    seed: int
    outcome: Outcome
    seconds: float

    @property
    def is_failure(self) -> bool:
        return self.outcome.verdict in FAILURES

    @property
    def rerun(self) -> str:
        """The command that runs exactly this case again."""
        return f"python -m tests.faults --only {self.kind} --case-seed {self.seed}"
