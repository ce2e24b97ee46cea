"""Simulators that fail: the trainer must end in time, with one error that says what happened.

The error names the environment's id and slot, and shows the simulator's own error.
"""

from __future__ import annotations

import functools
import os
import random
import re
from pathlib import Path

from bad_simulators import DIES, HANGS, LITTERS, MARK, OBSERVATIONS, RAISES, SAYS_LITTLE, STEPS

from faults.jobs import Ended, call, command
from faults.outcomes import SURVIVED, Damage, Kind, Outcome, Verdict

TIMEOUT = 3
"""Seconds within which simulators must answer."""
PATIENCE = 150.0
"""Seconds of the whole trainer on a busy machine: it also starts, compiles and closes workers that
hang."""
MODES: dict[str, tuple[str, ...]] = {
    "workers": (),
    "sync": ("vectorization_mode=sync",),
    "pools": ("num_pools=2",),
    "asynchronous": ("num_pools=2", "asynchronous=True"),
    "ahead": ("num_pools=2", "send_ahead=True"),
    "vector": ("vectorization_mode=vector_entry_point",),
}
IN_PROCESS = ("sync", "vector")
"""The modes in which a simulator runs in the process of the trainer, as all do that draw: it may
end that process, Ctrl-C is the trainer's, and Python waits for the processes that it leaves."""
IN_TRAINER = ("interrupt", "allocates", "children-raises")
"""Ways to raise that are the trainer's own in these modes."""
SLOT = re.compile(r"(environments?|slots?|envs?)\D{0,3}\d")
ANYWHERE: tuple[str, ...] = ("make", "reset", "restart", "step", "close")
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "raises": dict.fromkeys(RAISES | SAYS_LITTLE, (*ANYWHERE, "render")),
    "hangs": dict.fromkeys(HANGS, ANYWHERE),
    "dies": dict.fromkeys(DIES, ANYWHERE),
    "litters": dict.fromkeys(LITTERS, ANYWHERE),
    "lies": dict.fromkeys(OBSERVATIONS, ANYWHERE[1:4]) | dict.fromkeys(STEPS, ANYWHERE[3:4]),
}
"""By group: the ways in which simulators do wrong, and the places."""


def modes_of(group: str, where: str, how: str) -> list[str]:
    """Return how environments may be stepped together that do such a wrong."""
    ends_trainer = group not in ("raises", "lies") or how in IN_TRAINER
    return [
        mode for mode in MODES if not (ends_trainer and (mode in IN_PROCESS or where == "render"))
    ]


def variants(group: str) -> tuple[str, ...]:
    """Return all bad simulators of a group in mixed order: "place, way"."""
    found = [
        f"{where}, {how}"
        for how, places in GROUPS[group].items()
        for where in places
        if modes_of(group, where, how)
    ]
    return tuple(random.Random(group).sample(found, len(found)))


def train(run_dir: Path, where: str, how: str, mode: str) -> None:
    """Train on such environments; a job."""
    function = "make_batch" if mode == "vector" else "make"
    in_trainer = mode in IN_PROCESS or where == "render"  # pictures come from one of its own
    words = (
        f"--env-id gymnasium/bad_simulators:{function} --num-envs 4 --num-steps 8 --seed 1 "
        "--hidden-sizes 8 --num-epochs 1 --num-minibatches 1 --total-steps 96 --no-anneal "
        f"--num-evaluations 0 --run-dir {run_dir} {'--video' if where == 'render' else ''} "
        f"--env-options where={where} how={how} spared={0 if in_trainer else os.getpid()} "
        f"timeout={TIMEOUT}"
    )
    command("train", "ppo", *words.split(), *MODES[mode])


def fail(rng: random.Random, directory: Path, variant: str, group: str) -> Outcome:
    """Train on simulators that do wrong in one place and way."""
    where, how = variant.split(", ")
    mode = rng.choice(modes_of(group, where, how))
    try:
        ended = call(train, directory / "run", where, how, mode, seconds=PATIENCE)
        check(ended, where, how, mode)
    except Damage as damage:
        verdict, detail = damage.outcome.verdict, damage.outcome.detail
        raise Damage(verdict, f"{variant}, {mode}: {detail}") from damage
    return SURVIVED


def check(ended: Ended, where: str, how: str, mode: str) -> None:
    """Raise `Damage` unless the trainer ended as it should."""
    if ended.status == 0:
        # What closing does after the training, and what is only left behind, is nobody's loss.
        if where != "close" and how not in LITTERS:
            raise Damage(Verdict.SILENTLY_WRONG, f"trained to the end: {ended.output[-500:]}")
        return
    is_command_error = (
        ended.is_documented and "Traceback" not in ended.output.partition("error:")[0]
    )
    if not is_command_error:
        raise Damage(Verdict.UNNAMED_ERROR, ended.tail(3000))
    missing = [] if "bad_simulators:make" in ended.text else ["the id"]
    if mode not in IN_PROCESS and where != "make" and not SLOT.search(ended.text):
        missing.append("the slot")
    if how in RAISES and MARK not in ended.text:
        missing.append("the simulator's own error")
    if missing:
        raise Damage(Verdict.UNNAMED_ERROR, f"{' and '.join(missing)} not in: {ended.tail(3000)}")


KINDS = tuple(
    Kind(
        f"simulator-{group}",
        functools.partial(fail, group=group),
        per_round=2,
        variants=variants(group),
    )
    for group in GROUPS
)
