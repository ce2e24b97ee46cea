"""Several worker processes on one study in PostgreSQL, and HyperTrick as Optuna's pruner."""

import functools
import itertools
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optuna
import pytest
import sqlalchemy
from sqlalchemy.pool import NullPool
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.tuning import LogUniform, Status, Uniform, hypertrick_pruner, trial_key, trial_values
from jaxrl.tuning.sweeps import samplers, study
from jaxrl.tuning.sweeps.heartbeat import requeue
from jaxrl.tuning.sweeps.storage import change_state
from jaxrl.tuning.sweeps.study import SharedStudy

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPACE = {"learning_rate": LogUniform(1e-5, 1e-1), "gamma": Uniform(0.3, 0.9)}
SEED, NUM_TRIALS, NUM_PHASES, UPDATES = 5, 40, 6, 3
WORKERS = tuple("abcd")
PAUSES = {"a": 0.2, "b": 0.2, "c": 0.2, "d": 0.8}
"""How long their phases last at least; if any waited for the slowest, it would show."""
HEARTBEAT = 5

SCRIPT = """
import sys, time
from pathlib import Path

import jax

jax.config.update("jax_disable_most_optimizations", True)
from test_workers import HEARTBEAT, NUM_PHASES, NUM_TRIALS, PAUSES, SEED, SPACE, UPDATES
from toy_algorithm import ToyConfig, toy

from jaxrl.tuning import HyperTrick, Phase, sweep
from jaxrl.tuning.sweeps import lanes

url, directory, worker, resume = sys.argv[1:]
train = lanes.LaneGroup.train


def slowly(*arguments):
    time.sleep(PAUSES[worker])
    return train(*arguments)


lanes.LaneGroup.train = slowly
algo = toy()
Path(directory).with_suffix(".ready").touch()
while not (Path(directory).parent / "go").exists():
    time.sleep(0.02)
sweep(
    algo,
    ToyConfig(),
    SPACE,
    HyperTrick(NUM_TRIALS, NUM_PHASES),
    num_lanes=2,
    phase=Phase(UPDATES),
    run_dir=directory,
    seed=SEED,
    storage=url,
    study_name="toy_algorithm",
    strategy="vmap",
    worker=worker,
    heartbeat_seconds=HEARTBEAT,
    checkpoint_seconds=3.0,
    progress_bar=False,
    resume=resume == "resume",
)
"""


def postgresql_programs():
    """The directory of PostgreSQL's server programs; Debian keeps them off the PATH."""
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    newest_first = sorted(debian, key=lambda path: float(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    for directory in (*newest_first, *([Path(on_path).resolve().parent] if on_path else [])):
        if all((directory / name).exists() for name in ("initdb", "pg_ctl", "postgres")):
            return directory
    return None


@pytest.fixture(scope="module")
def database():
    """The URL of a PostgreSQL server on a socket in a temporary directory."""
    programs = postgresql_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    # Not pytest's tmp_path: a socket's path has at most 107 characters.
    directory = Path(tempfile.mkdtemp(prefix="jaxrl-pg-", dir="/tmp"))
    account: dict[str, Any] = {}
    if os.geteuid() == 0:  # the server refuses to run as root
        names = {user.pw_name for user in pwd.getpwall()}
        user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
        account = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(directory, user.pw_uid, user.pw_gid)

    def call(program, *arguments):
        done = subprocess.run(
            [programs / program, "-D", directory / "data", *arguments],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            **account,
        )
        log = directory / "log"
        assert done.returncode == 0, done.stdout + (log.read_text() if log.exists() else "")

    settings = f"-c listen_addresses='' -c unix_socket_directories={directory} -c fsync=off"
    try:
        call("initdb", "-U", "jaxrl", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        call("pg_ctl", "start", "-w", "-l", directory / "log", "-o", settings)
        try:
            yield f"postgresql://jaxrl@/postgres?host={directory}"
        finally:
            call("pg_ctl", "stop", "-w", "-m", "immediate")
    finally:
        shutil.rmtree(directory)


def begin(url, directory, worker, resume=""):
    root = Path(__file__).parents[3]
    path = os.pathsep.join(
        [
            str(root),
            str(root / "tests"),
            str(root / "tests/tuning/sweeps"),
            os.environ.get("PYTHONPATH", ""),
        ]
    )
    with (directory / f"{worker}.log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, url, directory / worker, worker, resume],
            env=os.environ | {"PYTHONPATH": path},
            stdout=log,
            stderr=log,
        )


def until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.2)


def trials_of(url):
    storage = optuna.storages.RDBStorage(
        url.replace("postgresql:", "postgresql+psycopg:"), engine_kwargs={"poolclass": NullPool}
    )
    try:
        return optuna.load_study(study_name="toy_algorithm", storage=storage).trials
    except KeyError:  # not yet made
        return []


def spans_of(directory):
    return json.loads((directory / "sweep.json").read_text())["spans"]


def rows_of(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@functools.cache
def scores_alone():
    """Every trial's scores, were it never stopped."""
    algo, key = toy(), jax.random.key(SEED)

    @jax.jit
    def alone(trial):
        config = ToyConfig().replace(**trial_values(SPACE, key, trial))
        _, metrics = jaxrl.train(algo, config, trial_key(key, trial), UPDATES * NUM_PHASES)
        names = ("episode_return_sum", "episode_count")
        returns, counts = (metrics[name].reshape(-1, UPDATES).sum(1) for name in names)
        return returns / counts

    return np.stack([alone(trial) for trial in range(NUM_TRIALS)])


def is_midway(trials):
    """A quarter has ended, and of these one was run by the worker that will be killed."""
    ended = [t for t in trials if t.state.name in ("COMPLETE", "PRUNED")]
    return len(ended) >= NUM_TRIALS / 4 and "b" in {t.user_attrs["worker"] for t in ended}


def stands_still(process, url):
    """Stop a worker in the middle of a trial; it goes on if it has none."""
    process.send_signal(signal.SIGSTOP)
    running = [t for t in trials_of(url) if t.state.name == "RUNNING"]
    if "b" in {t.user_attrs.get("worker") for t in running}:
        return True
    process.send_signal(signal.SIGCONT)
    return False


class Outcome:
    """A study of four workers, one of which was killed, and what a restart of it changed."""

    def __init__(self, url, directory):
        self.directory = directory
        processes = {worker: begin(url, directory, worker) for worker in WORKERS}
        try:
            until(lambda: len(list(directory.glob("*.ready"))) == len(WORKERS), 120)
            (directory / "go").touch()
            until(lambda: is_midway(trials_of(url)), 60)
            until(lambda: stands_still(processes["b"], url), 60)
            processes["b"].send_signal(signal.SIGKILL)
            self.codes = {worker: p.wait(90) for worker, p in processes.items()}
            self.trials = trials_of(url)
            processes["again"] = begin(url, directory, "b", "resume")
            self.code_again = processes["again"].wait(60)
            self.trials_after = trials_of(url)
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        self.lost = [t for t in self.trials if t.state.name == "FAIL" and "index" in t.user_attrs]
        self.ended = {t.user_attrs["index"]: t for t in self.trials if t.state.name != "FAIL"}

    def logs(self):
        return "".join(path.read_text() for path in sorted(self.directory.glob("*.log")))


@pytest.fixture(scope="module")
def outcome(database, tmp_path_factory):
    return Outcome(database, tmp_path_factory.mktemp("workers"))


def test_workers_finish_a_study_though_one_is_killed(outcome):
    codes = dict.fromkeys(WORKERS, 0) | {"b": -signal.SIGKILL}
    assert outcome.codes == codes, outcome.logs()
    ended = [t.user_attrs["index"] for t in outcome.trials if t.state.name != "FAIL"]
    assert sorted(ended) == list(range(NUM_TRIALS))
    assert {t.state.name for t in outcome.ended.values()} == {"COMPLETE", "PRUNED"}
    assert {t.user_attrs["worker"] for t in outcome.ended.values()} == set(WORKERS)


def test_the_killed_workers_trials_are_repeated_by_others(outcome):
    # On a machine that stands still for two heartbeats others may be taken for dead too.
    of_the_killed = [t for t in outcome.lost if t.user_attrs["worker"] == "b"]
    assert 1 <= len(of_the_killed) <= 2
    for lost in outcome.lost:
        repeated = outcome.ended[lost.user_attrs["index"]]
        assert repeated.number > lost.number
        assert repeated.params == lost.params
        assert repeated.user_attrs["worker"] != "b" or lost not in of_the_killed
    # Two workers that ask for the last trial at once put two into the queue.
    surplus = [t for t in outcome.trials if t.state.name == "FAIL" and t not in outcome.lost]
    assert all(not t.params and not t.intermediate_values for t in surplus)


def test_no_trial_ran_twice_and_its_scores_are_its_own(outcome):
    phases = Counter(
        (span["trial"], span["phase"])
        for worker in WORKERS
        if worker != "b"
        for span in spans_of(outcome.directory / worker)
    )
    assert set(phases.values()) == {1}
    for index, trial in outcome.ended.items():
        scores = dict(sorted(trial.intermediate_values.items()))  # a database has no order
        if trial.user_attrs["worker"] != "b":
            assert {phase for i, phase in phases if i == index} == set(scores)
        assert list(scores) == list(range(len(scores)))
        assert (trial.state.name == "COMPLETE") == (len(scores) == NUM_PHASES)
        expected = scores_alone()[index, : len(scores)]
        np.testing.assert_allclose(list(scores.values()), expected, rtol=1e-4)


def test_no_worker_waits_for_another(outcome):
    """Its lanes take new trials at once, whatever the slowest worker does."""
    lost = {t.user_attrs["index"] for t in outcome.lost}
    num_phases = {}
    for worker in set(WORKERS) - {"b"}:
        rows = rows_of(outcome.directory / worker)
        num_phases[worker] = len(spans_of(outcome.directory / worker))
        for lane in range(2):
            on_lane = [row for row in rows if row["lane"] == lane]
            assert on_lane[0]["update"] == 1
            for before, after in itertools.pairwise(on_lane):
                # Only for those that were lost there is something to wait for.
                at_once = after["update"] == before["update"] + 1
                assert at_once or after["trial"] in lost
    assert min(num_phases["a"], num_phases["c"]) > 1.2 * num_phases["d"]


def test_a_worker_that_comes_back_runs_nothing_twice(outcome):
    assert outcome.code_again == 0, outcome.logs()
    assert outcome.trials_after == outcome.trials
    summary = json.loads((outcome.directory / "b" / "sweep.json").read_text())
    own = {i: t for i, t in outcome.ended.items() if t.user_attrs["worker"] == "b"}
    assert {t["trial"] for t in summary["trials"]} == set(own)
    for trial in summary["trials"]:
        stored = own[trial["trial"]]
        assert trial["values"] == pytest.approx(stored.params)
        np.testing.assert_allclose(
            trial["scores"], list(stored.intermediate_values.values()), rtol=1e-6
        )
        state = {"completed": "COMPLETE", "stopped": "PRUNED"}[trial["status"]]
        assert stored.state.name == state


def open_store(url, worker, num_trials=4, heartbeat_seconds=1, search=None):
    def draw(index):
        return {"gamma": 0.3 + 0.01 * index}

    space = {"gamma": Uniform(0.3, 0.9)}
    times = {"heartbeat_seconds": heartbeat_seconds, "search": search}
    return SharedStudy(url, "s", space, num_trials, draw, worker=worker, **times)


@pytest.fixture
def stores(tmp_path):
    """`stores(worker)`: a view of one study in SQLite that is closed at the end."""
    opened = []

    def make(worker, url=f"sqlite:///{tmp_path / 's.db'}", **arguments):
        opened.append(open_store(url, worker, **arguments))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def claim_in_time(store):
    """What a worker claims that asks until there is something."""
    claimed = []

    def ask():
        claim = store.claim(())
        claimed.extend([claim] if claim is not None else [])
        return bool(claimed)

    until(ask, 20)
    return claimed[0]


def end(store, index):
    assert store.report(index, 0, float(index)) == float(index)
    store.finish(index, Status.COMPLETED, float(index))


def states(store):
    return [t.state.name for t in store._study.trials]


class DiedError(Exception):
    pass


def die(*arguments):
    raise DiedError


def test_a_worker_that_dies_while_it_takes_a_trial_does_not_lose_it(stores, monkeypatch):
    dead, alive = stores("dead"), stores("alive", num_trials=1)
    monkeypatch.setattr(dead, "_begin", die)
    with pytest.raises(DiedError):
        dead.claim(())
    dead.close()
    assert states(alive) == ["RUNNING"]
    assert alive.has_unfinished_elsewhere()
    assert claim_in_time(alive) == (0, {"gamma": pytest.approx(0.3)})
    end(alive, 0)
    assert states(alive) == ["FAIL", "COMPLETE"]
    assert alive.claim(()) is None
    assert not alive.has_unfinished_elsewhere()


def test_a_worker_that_dies_while_it_takes_a_trial_has_it_again(stores, monkeypatch, tmp_path):
    url = {"url": f"sqlite:///{tmp_path / 'alone.db'}", "heartbeat_seconds": 60}
    journal = {"url": f"journal:///{tmp_path / 'alone.log'}"}
    for where in (url, journal):
        steps = ((study, "change_state"), "WAITING"), ((SharedStudy, "_begin"), "RUNNING")
        for step, before in steps:
            store = stores("a", num_trials=2, **where)
            with monkeypatch.context() as patch:
                patch.setattr(*step, die)
                with pytest.raises(DiedError):
                    store.claim(())
            assert states(store)[-1] == before
            store.close()
        again = stores("a", num_trials=2, **where)
        claims = [again.claim(()), again.claim(())]
        assert sorted(claims) == [(0, {"gamma": 0.3}), (1, {"gamma": 0.31})]
        assert again.claim(()) is None
        for index in (0, 1):
            end(again, index)
        assert states(again) == ["COMPLETE"] * 2


def test_a_study_of_another_search_is_refused(stores):
    first = stores("a", search={"env": "Pong-v5", "sizes": (8, 8)})
    stores("b", search={"env": "Pong-v5", "sizes": (8, 8)})
    with pytest.raises(ValueError, match=r"'s' is of another search.*\n  env: 'Pong-v5' -> 'Q"):
        stores("c", search={"env": "Qbert-v5", "sizes": (8, 8)})
    assert first.claim(()) is not None


def test_trials_of_other_workers_are_counted(stores):
    first, other = stores("a", heartbeat_seconds=60), stores("b", heartbeat_seconds=60)
    first.claim(())
    first.claim(())
    end(first, 0)
    other.claim(())
    assert (first.count_elsewhere(), other.count_elsewhere()) == (1, 2)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_values_drawn_again_after_a_kill_are_the_same(tmp_path, monkeypatch, sampler):
    space = {"gamma": Uniform(0, 1), "rate": Uniform(0, 1), "size": Uniform(0, 1)}
    claims: list[Any] = []
    for dies_after in (None, 1, 2):
        url = f"journal:///{tmp_path / f'{dies_after}.log'}"

        def draw(index):
            return {"gamma": 0.1, "rate": 0.2, "size": 0.3}

        def store(url=url, draw=draw):
            return SharedStudy(url, "s", space, 4, draw, sampler=sampler, worker="a")

        if dies_after is not None:
            steps = iter([samplers.suggest] * dies_after + [die])
            with monkeypatch.context() as patch:
                patch.setattr(samplers, "suggest", lambda *args, steps=steps: next(steps)(*args))
                with pytest.raises(DiedError):
                    store().claim(())
        claims.append(store().claim(()))
    assert claims[0] == claims[1] == claims[2]
    assert len(set(claims[0][1].values())) == 3


def test_a_worker_that_dies_while_it_frees_a_trial_does_not_lose_it(stores):
    dead, alive = stores("dead"), stores("alive", num_trials=1)
    index, _ = dead.claim(())
    # It did not put it into the queue.
    change_state(dead._storage, dead._claimed[index], "FAIL")
    assert alive.has_unfinished_elsewhere()
    assert claim_in_time(alive)[0] == index
    assert dead.report(index, 0, 1.0) is None  # it was alive after all
    end(alive, index)
    assert states(alive) == ["FAIL", "COMPLETE"]


def test_what_two_workers_put_into_the_queue_runs_once(stores):
    store = stores("a", num_trials=2, heartbeat_seconds=60)
    store.claim(())
    lost = store._study.trials[0]
    change_state(store._storage, lost, "FAIL")
    requeue(store._study, store._study.trials[0])
    requeue(store._study, store._study.trials[0])
    for _ in range(2):  # one too many
        store._study.add_trial(optuna.create_trial(state=store._state.WAITING))
    other = stores("b", num_trials=2, heartbeat_seconds=60)
    assert [other.claim(())[0] for _ in range(2)] == [0, 1]
    assert other.claim(()) is None
    assert states(other) == ["FAIL", "RUNNING", "FAIL", "RUNNING", "FAIL"]


def test_a_worker_that_comes_back_in_time_keeps_its_trials(stores):
    first = stores("a", num_trials=3, heartbeat_seconds=60)
    other = stores("b", num_trials=3, heartbeat_seconds=60)
    claims = [first.claim(()), first.claim(())]
    end(first, 0)
    other.claim(())
    first.close()
    again = stores("a", num_trials=3, heartbeat_seconds=60)
    assert again.ended_values() == {0: claims[0][1]}
    assert again.claim(again.ended_values()) == claims[1]
    assert again.claim(again.ended_values()) is None
    assert again.has_unfinished_elsewhere()
    end(again, 1)
    end(other, 2)
    assert states(other) == ["COMPLETE"] * 3
    assert not again.has_unfinished_elsewhere()


def test_a_trial_that_went_less_far_before_a_restart_is_not_lost(stores):
    first = stores("a", num_trials=1)
    index, values = first.claim(())
    first.report(index, 0, 3.0)
    first.finish(index, Status.STOPPED, 3.0)
    first.close()
    again = stores("a", num_trials=1)
    assert again.claim(()) == (index, values)  # it is alone, and goes on from its checkpoint
    assert again.report(index, 0, 3.0) == 3.0
    assert again.ended_values() == {}
    assert again.report(index, 1, 4.0) is None
    assert again.ended_values() == {index: values}


def test_a_repeated_trial_does_not_belong_to_the_worker_that_lost_it(stores):
    first, other = stores("a"), stores("b")
    index, _ = first.claim(())
    first.close()
    until(lambda: states(other) == ["FAIL", "WAITING"], 20)
    assert not stores("a")._unclaimed
    assert other.claim(())[0] == index


def test_many_workers_at_once_share_the_trials(database):
    """They make the tables, the study and the queue at the same time."""
    engine = sqlalchemy.create_engine(
        database.replace("postgresql:", "postgresql+psycopg:"),
        isolation_level="AUTOCOMMIT",
        poolclass=NullPool,
    )
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("CREATE DATABASE crowd"))
    url = database.replace("/postgres?", "/crowd?")

    def work(worker):
        store = open_store(url, worker, num_trials=40, heartbeat_seconds=30)
        ran = []
        while (claimed := store.claim(())) is not None:
            ran.append(claimed[0])
            end(store, claimed[0])
        store.close()
        return ran

    with ThreadPoolExecutor(8) as pool:
        ran = list(pool.map(work, "abcdefgh"))
    assert sorted(itertools.chain(*ran)) == list(range(40))
    assert sum(map(bool, ran)) > 1


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("rate", [0.0, 0.25, 0.6])
def test_the_pruner_stops_the_trials_that_the_rule_stops(direction, rate):
    num_trials, num_phases = 20, 4
    sign = 1 if direction == "maximize" else -1
    # Few distinct values, so that some are equal; some trials have no score.
    scores = np.random.default_rng(0).integers(0, 12, (num_trials, num_phases)).astype(float)
    scores[::7] = np.nan
    expected, reported = {}, [[] for _ in range(num_phases)]
    for trial in range(num_trials):
        for phase in range(num_phases):
            score = scores[trial, phase]
            reported[phase].append(score)
            ranked = [s for s in reported[phase] if s == s]
            spared = num_trials * (1 - rate**0.5) * (1 - rate) ** phase
            below = sum(s < score for s in ranked) + 0.5 * ranked.count(score)
            late, bad = len(reported[phase]) > spared, below < rate**0.5 * len(ranked)
            expected[trial] = phase + 1
            if late and score == score and bad:
                break

    def objective(trial):
        for phase in range(num_phases):
            trial.report(sign * scores[trial.number, phase], phase)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 0.0

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = hypertrick_pruner(num_trials, rate)
    assert isinstance(pruner, optuna.pruners.BasePruner)
    study = optuna.create_study(direction=direction, pruner=pruner)
    study.optimize(objective, n_trials=num_trials)
    assert {t.number: len(t.intermediate_values) for t in study.trials} == expected
    assert any(t.state.name == "PRUNED" for t in study.trials) == (rate > 0)
