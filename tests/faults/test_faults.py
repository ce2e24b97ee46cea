"""Kinds of fault that other tests do not try, once; and what of the campaign needs no damage."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import bad_simulators
import pytest

from faults import campaign, soak
from faults.outcomes import SURVIVED, Kind, Outcome, Result, Verdict

ROOT = Path(__file__).parents[2]
KINDS = tuple(campaign.find_kinds())
# Other tests do nearly the same: tests/envs/host/test_worker_pool.py; of tuning/,
# test_program.py, studies/test_damage.py, and of sweeps/ test_loop.py, test_workers.py and
# test_best_agents.py; of training/, run_dir/test_checkpoint.py and test_loggers.py; of files/,
# test_intact.py and test_schema.py; distributed/test_processes.py and test_arguments.py.
TESTED_ELSEWHERE = (
    "simulator-", "kill-sweep-static", "kill-workers-postgresql", "kill-joined", "poison-search",
    "damage-", "swap-", "input-",
)  # fmt: skip
EXAMPLES = ("damage-checkpoint", "input-command")
"""Kinds that are tried nevertheless."""
TRIED = tuple(k for k in KINDS if k in EXAMPLES or not k.startswith(TESTED_ELSEWHERE))
IN_PROCESSES = tuple(k for k in TRIED if k.startswith(("kill-", "two-writers", "counters")))
"""Half of the work. The other half has all kinds that share a warm process and its programs."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of two campaigns side by side, each of some of the kinds that are tried here."""
    directory = tmp_path_factory.mktemp("faults")
    halves = IN_PROCESSES, tuple(kind for kind in TRIED if kind not in IN_PROCESSES)
    command = sys.executable, "-m", "tests.faults", "--once"
    # Without these tests' own flags, for which the campaign has faster ones to compile.
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    started: list[subprocess.Popen] = []
    for number, kinds in enumerate(halves):
        only = [word for kind in kinds for word in ("--only", kind)]
        with (directory / f"{number}.log").open("w") as log:
            out = "--out", str(directory / f"{number}.json")
            started.append(
                subprocess.Popen(
                    [*command, *only, *out], cwd=ROOT, stdout=log, env=env, start_new_session=True
                )
            )
    try:
        for process in started:
            process.wait(1200)  # beside other tests
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    contents = [json.loads((directory / f"{n}.json").read_text()) for n in range(2)]
    assert all({"versions", "created", "command"} <= set(content) for content in contents)
    return contents


@pytest.mark.faults
@pytest.mark.parametrize("kind", TRIED)
def test_what_is_damaged_survives(results, kind):
    (content,) = (content for content in results if kind in content["counts"])
    assert [f for f in content["failures"] if f["kind"] == kind] == []
    assert content["counts"][kind]["tried"] == 1
    if content["counts"][kind]["skipped"]:
        pytest.skip(content["skipped"][kind])


def test_failures_are_counted_and_name_the_command_that_reruns_them():
    results = [
        Result("a", 1, SURVIVED, 1.0),
        Result("a", 2, Outcome(Verdict.LOST, "all"), 1.0),
        Result("b", 3, Outcome(Verdict.SKIPPED, "no disk"), 1.0),
    ]
    kinds = [
        Kind("a", lambda rng, directory: SURVIVED, variants=("x", "y", "z")),
        Kind("b", lambda rng, directory: SURVIVED),
    ]
    content = json.loads(json.dumps(campaign.summary(results, kinds)))
    counts = content["counts"]["a"]
    assert (counts["tried"], counts["survived"], counts["lost"], counts["hung"]) == (2, 1, 1, 0)
    (failure,) = content["failures"]
    assert failure["rerun"] == "python -m tests.faults --only a --case-seed 2"
    assert content["skipped"] == {"b": "no disk"}
    assert content["variants"] == {"a": {"tried": 2, "of": 3}}


def test_the_seed_decides_what_is_drawn():
    kinds = list(campaign.find_kinds().values())
    one_round = sum(kind.per_round for kind in kinds)

    def first(seed):
        drawn = itertools.islice(campaign.draw(kinds, seed), one_round)
        return [(kind.name, case) for kind, case in drawn]

    assert first(1) == first(1) != first(2)
    assert {kind for kind, _ in first(1)} == set(KINDS)


def test_each_wrong_of_a_simulator_is_a_variant():
    simulators = [k for k in campaign.find_kinds().values() if k.name.startswith("simulator-")]
    variants = [variant for kind in simulators for variant in kind.variants]
    wrongs = bad_simulators.DEEDS | bad_simulators.OBSERVATIONS | bad_simulators.STEPS
    assert {variant.split(", ")[1] for variant in variants} == set(wrongs)
    assert len(set(variants)) == len(variants) > 200
    kind = simulators[0]
    tried = {kind.variant(seed) for seed in range(len(kind.variants))}
    assert tried == {(variant,) for variant in kind.variants}


FRAUD = """
import time
from faults import jobs
from faults.campaign import run_case
from faults.outcomes import Kind, SURVIVED
def leave(rng, directory):
    jobs.start(time.sleep, 60)
    return SURVIVED
def refuse(rng, directory):
    def work():
        raise KeyError("x")
    return jobs.refused(jobs.call(work), "x")
def stand(rng, directory):
    jobs.call(time.sleep, 60, seconds=0.5)
for run in (leave, refuse, stand):
    print(run_case(Kind(run.__name__, run), 0).outcome.verdict)
"""


@pytest.mark.process
def test_leftovers_unnamed_errors_and_hangs_are_found(tmp_path):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", FRAUD], capture_output=True, text=True, check=True, timeout=120,
        env=os.environ | {"PYTHONPATH": path, "JAXRL_FAULTS_SCRATCH": str(tmp_path),
                          "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["hung", "unnamed error", "hung"]


def test_a_soak_finds_what_grows():
    flat = [soak.Sample(i, 100 + i % 3, 5, 9, 20) for i in range(60)]
    assert soak.growth(flat) == []
    leaking = [x._replace(mebibytes=x.mebibytes + i, files=5 + i // 30) for i, x in enumerate(flat)]
    assert [line.split(":")[0] for line in soak.growth(leaking)] == ["mebibytes"]
    opening = [x._replace(files=5 + i // 10) for i, x in enumerate(flat)]
    assert soak.growth(opening) == ["files: from 8 to 10"]
