"""The agents of paused trials, which any worker of a study may continue."""

import uuid

import jax
import numpy as np
import pytest
from shared_studies import DiedError, die, open_study
from small_algorithms import same
from toy_algorithm import ToyConfig, toy

from jaxrl.training.run_dir.checkpoint import Checkpoints
from jaxrl.tuning.studies.paused_agents import PausedAgents, default_folder


@pytest.fixture(scope="module")
def agent():
    return jax.jit(toy().init)(ToyConfig(), jax.random.key(3))


def test_an_agent_is_stored_as_it_is_once(tmp_path, agent):
    folder = PausedAgents(tmp_path)
    folder.save(4, 3, agent, 12)
    folder.save(4, 3, agent._replace(params=agent.params + 1), 12)
    found = PausedAgents(tmp_path).load(4, 3, jax.eval_shape(lambda: agent))
    assert found is not None
    assert found.num_updates == 12
    assert same(found.state, agent)
    folder.remove(lambda trial: trial == 3)
    assert len(list(tmp_path.iterdir())) == 1
    folder.remove(lambda trial: trial == 4)
    assert not list(tmp_path.iterdir())


def test_an_agent_that_is_damaged_or_missing_is_told(tmp_path, agent):
    folder = PausedAgents(tmp_path)
    with pytest.warns(UserWarning, match=r"trial 4 in .*-phases-3 is lost, .*no such folder"):
        assert folder.load(4, 3, agent) is None
    folder.save(4, 3, agent, 12)
    path = max(tmp_path.rglob("ocdbt.process_0/d/*"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.warns(UserWarning, match=r"trains from its beginning again: .*has changed"):
        assert folder.load(4, 3, agent) is None


def test_an_agent_whose_worker_was_killed_while_it_saved_is_deleted(tmp_path, monkeypatch):
    folder = PausedAgents(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_seal", die)  # all of the agent is written
        with pytest.raises(DiedError):
            folder.save(4, 3, {"x": np.ones(2)}, 12)
    folder.save(4, 3, {"x": np.ones(2)}, 12)
    folder.save(5, 3, {"x": np.ones(2)}, 12)
    assert len(list(tmp_path.iterdir())) == 3
    folder.remove(lambda trial: trial == 4)
    assert [path.name for path in tmp_path.iterdir()] == ["trial-5-phases-3"]


@pytest.mark.parametrize("step", ["__init__", "save", "_seal", "close"])
def test_a_slow_worker_saves_nothing_once_another_one_has_ended_the_trial(
    tmp_path, monkeypatch, step
):
    folder, original = PausedAgents(tmp_path), getattr(Checkpoints, step)

    def remove_before(*arguments, **options):
        folder.remove(lambda trial: trial == 4)
        return original(*arguments, **options)

    monkeypatch.setattr(Checkpoints, step, remove_before)
    folder.save(4, 3, {"x": np.ones(2)}, 12)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(Checkpoints, "save", fail)
    with pytest.raises(OSError, match="No space left"):
        PausedAgents(tmp_path).save(4, 3, {"x": np.ones(2)}, 12)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:////data/study.db", "/data/study-paused"),
        ("journal:////data/study.log", "/data/study-paused"),
        ("sqlite:///study.db", "study-paused"),
        ("sqlite://", "run/paused"),
        ("postgresql://user@host/database", "run/paused"),
    ],
)
def test_a_folder_lies_beside_a_storage_that_is_a_file(tmp_path, url, expected):
    assert str(default_folder(url, tmp_path)).replace(str(tmp_path), "run") == expected


def test_a_worker_with_another_folder_is_refused(tmp_path):
    url = f"sqlite:///{tmp_path / 's.db'}"
    a, b = open_study(url, "a"), open_study(url, "b")
    a.open_agents(tmp_path / "shared").save(0, 1, {"x": np.ones(2)}, 5)
    with pytest.raises(ValueError, match=r"study 's' at .*not in .*own: .*--agents-dir"):
        b.open_agents(tmp_path / "own")
    found = b.open_agents(tmp_path / "shared").load(0, 1, {"x": np.zeros(2)})
    assert found is not None
    assert found.num_updates == 5
    for study in (a, b):
        study.close()


def test_workers_that_begin_at_the_same_moment_find_each_other_s_agents(tmp_path, monkeypatch):
    """Between the look of one for a folder and its own, the other makes one."""
    url, agent = f"sqlite:///{tmp_path / 'study.db'}", {"x": np.ones(2)}
    workers = [open_study(url, name) for name in "abc"]
    make_name, found = uuid.uuid4, []

    def meanwhile():
        monkeypatch.undo()
        found.append(workers[1].open_agents(tmp_path / "paused"))
        return make_name()

    monkeypatch.setattr(uuid, "uuid4", meanwhile)
    found.append(workers[0].open_agents(tmp_path / "paused"))
    found.append(workers[2].open_agents(tmp_path / "paused"))
    assert len(list((tmp_path / "paused").iterdir())) == 2
    for trial, folder in enumerate(found):
        folder.save(trial, 1, agent, 12)
        for other in found:
            assert other.load(trial, 1, agent).num_updates == 12
    found[2].remove(lambda _: True)
    assert not list((tmp_path / "paused").glob("*/*"))
    for worker in workers:
        worker.close()
