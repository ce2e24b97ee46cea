"""Data is never code: few uses of what can run code, and attacks (docs/explanation/security.md)."""

import ast
import json
import pickle
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optuna
import pytest
from written_runs import write_run
from written_sweeps import sweep_of, trial

import jaxrl
from jaxrl.__main__ import main
from jaxrl.analysis.comparison import group_runs, read_run
from jaxrl.analysis.comparison_page import write_comparison
from jaxrl.analysis.sweep_report import write_report
from jaxrl.analysis.video import write_caption
from jaxrl.files import seal
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.checkpoint import Checkpoints
from jaxrl.tuning import Uniform
from jaxrl.tuning.studies.storage import close_storage
from jaxrl.tuning.studies.study import SharedStudy

pytestmark = pytest.mark.smoke
PACKAGE = Path(jaxrl.__file__).parent

# --- what may run code ---------------------------------------------------------------------------

MODULES = {
    "pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml", "runpy", "code",
    "subprocess", "pty", "ctypes", "multiprocessing", "torch",
}  # fmt: skip
"""Modules that can run what they are given."""
CALLS = {"eval", "exec", "compile", "__import__", "import_module", "from_string", "CmaEsSampler",
         "JournalRedisBackend", "allow_pickle", "shell", "extract", "extractall", "system", "popen",
         "load_extension", "enable_load_extension"}  # fmt: skip
"""Functions and keywords that can, unless their argument is a constant."""
ALLOWED = {
    ("__init__.py", "import_module"): "jaxrl.presets and jaxrl.tuning",
    ("__main__.py", "import_module"): "a name of COMMANDS, under jaxrl.cli",
    ("envs/registry.py", "import_module"): "a module of the table BACKENDS",
    ("envs/gymnax.py", "import_module"): "two modules named in the file",
    ("envs/gymnasium.py", "import_module"): "the caller's id; jaxrl.envs.trust guards files",
    ("envs/gymnasium.py", "multiprocessing"): "asks whether this process is a worker",
    ("envs/host/worker_processes.py", "cloudpickle"): "this process to its own workers",
    ("envs/host/worker_processes.py", "pickle"): "spaces, from its own workers",
    ("envs/host/worker_processes.py", "multiprocessing"): "the workers",
    ("envs/host/shared_memory.py", "multiprocessing"): "memory of the workers, with given sizes",
    ("envs/host/worker.py", "cloudpickle"): "spaces, to the process that started it",
    ("envs/host/worker.py", "pickle"): "functions, from the process that started it",
    ("envs/host/supervisor.py", "multiprocessing"): "waits for the trainer and the workers",
    ("envs/host/supervisor.py", "ctypes"): "prctl of the C library, with constant arguments",
    ("training/run_dir/manifest.py", "subprocess"): "git, with constant arguments",
    ("analysis/video.py", "subprocess"): "ffmpeg, with a list of arguments",
    ("cli/flags/config_file.py", "yaml"): "safe_load, which makes plain values only",
    ("cli/submit.py", "subprocess"): "sbatch or qsub, on the user's command",
    ("cli/doctor.py", "ctypes"): "looks for a library, does not load it",
}
"""The uses in the package, by file, with the reason why no file or database reaches them."""


def uses(path):
    """Yield the names in `MODULES` and `CALLS` that a file uses."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ({alias.name.partition(".")[0] for alias in node.names} & MODULES)
        elif isinstance(node, ast.ImportFrom):
            yield from ({(node.module or "").partition(".")[0]} & MODULES)
            yield from ({alias.name for alias in node.names} & CALLS)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            is_constant = bool(node.args) and isinstance(node.args[0], ast.Constant)
            is_method = name == "compile" and not isinstance(node.func, ast.Name)  # of a pattern
            if name in CALLS and not is_method and not (name == "import_module" and is_constant):
                yield name
            yield from ({str(word.arg) for word in node.keywords} & CALLS)


def test_few_files_use_what_can_run_code():
    found = {
        (path.relative_to(PACKAGE).as_posix(), use)
        for path in PACKAGE.rglob("*.py")
        for use in uses(path)
    }
    assert sorted(found) == sorted(ALLOWED)


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("import pickle", "pickle"),
        ("from yaml import load", "yaml"),
        ("eval(x)", "eval"),
        ("importlib.import_module(x)", "import_module"),
        ("from importlib import import_module as f", "import_module"),
        ("np.load(x, allow_pickle=True)", "allow_pickle"),
        ("jinja2.Environment().from_string(x)", "from_string"),
        ("samplers.CmaEsSampler()", "CmaEsSampler"),
    ],
)
def test_a_new_use_is_found(tmp_path, text, use):
    path = tmp_path / "x.py"
    path.write_text(text)
    assert use in set(uses(path))


# --- attacks -------------------------------------------------------------------------------------

SCRIPT = "<script>alert(1)</script>"
TEMPLATE = "{{ 7 * 191 }}{% for x in [].__class__.__mro__ %}{% endfor %}"


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Return the file that every attack writes if it is run; it must not exist after the test."""
    path = tmp_path / "ran"
    module = tmp_path / "path" / "stranger.py"
    module.parent.mkdir()
    module.write_text(f"open({str(path)!r}, 'w').close()\n")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {path}\n")
    program.chmod(0o755)
    monkeypatch.syspath_prepend(str(module.parent))
    yield path
    assert not path.exists()
    assert "stranger" not in sys.modules


def attack_on_env(kind, ran):
    """Return the entry `env` of a manifest that would write the file."""
    program = str(ran.parent / "program")
    id, options = {
        "function": ("gymnasium/os:system", {"command": f"touch {ran}"}),
        "function without a prefix": ("os:system", {"command": f"touch {ran}"}),
        "module": ("gymnasium/stranger:Name-v0", {}),
        "gym 0.26": ("gymnasium/GymV26Environment-v0", {"env_id": "stranger:Name-v0"}),
        "gym 0.21": ("GymV21Environment-v0", {"env_id": "stranger:Name-v0"}),
        "program": ("envpool/D1Basic-v1", {"vzd_path": program}),
    }[kind]
    options |= {"vectorization_mode": "sync"} if kind == "function" else {}
    return {"id": id, "num_envs": 1, "options": options}


def attacks_on_env():
    """Return the kinds of `attack_on_env`."""
    return ["function", "function without a prefix", "module", "gym 0.26", "gym 0.21",
            "program"]  # fmt: skip


@pytest.mark.parametrize("kind", attacks_on_env())
def test_no_reader_of_a_run_makes_an_environment_that_names_code(kind, ran, tmp_path, capsys):
    run_dir = write_run(tmp_path / "run")
    changed = {"env": attack_on_env(kind, ran), "config": {}, "log_every": 1}
    changed |= {"num_evaluations": 0, "eval_episodes": 1}
    manifests.write(run_dir, manifests.read(run_dir) | changed)
    best = write_run(tmp_path / "sweep" / "best" / "trial-0")
    manifests.write(best, manifests.read(best) | changed)
    for directory in (run_dir, best):
        with pytest.raises(ValueError, match="trust_imports=True"):
            jaxrl.load_policy(directory)
        with pytest.raises(ValueError, match="trust_imports=True"):
            jaxrl.rerun(directory, tmp_path / "again")
        with pytest.raises(SystemExit, match=r"--trust-imports"):
            main(["play", str(directory)])
        write_comparison(group_runs([read_run(directory)]), tmp_path / "page.html")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"algorithm": "os:system"}, "which jaxrl does not have"),
        ({"algorithm": "__import__('stranger')"}, "which jaxrl does not have"),
        ({"config": {"torso": "stranger:Torso"}}, "torso must be"),
        ({"config": {"hidden_sizes": "__import__('stranger')"}}, "hidden_sizes must be"),
        ({"config": {"__class__": "stranger"}}, "has no fields"),
        ({"custom_network": "stranger:Network"}, "custom_network must be"),
    ],
)
def test_algorithms_networks_and_configs_are_not_imported(changed, message, ran, tmp_path):
    run_dir = write_run(tmp_path / "run")
    manifests.write(run_dir, manifests.read(run_dir) | {"config": {}} | changed)
    with pytest.raises(ValueError, match=message):
        jaxrl.load_policy(run_dir, trust_imports=True)


def test_a_module_beside_a_run_is_not_imported(ran, tmp_path, monkeypatch):
    write_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path / "path")
    monkeypatch.setattr(
        sys, "path", [x for x in sys.path if x not in ("", str(ran.parent / "path"))]
    )
    main(["compare", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")])
    assert str(tmp_path / "path") not in sys.path


class Attack:
    """An object that writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("storage", ["sqlite:///{}/study.db", "journal:///{}/study.log"])
@pytest.mark.parametrize(("sampler", "is_number"), [("cmaes", 1), ("cmaes", 0), ("tpe", 1)])
def test_no_attribute_of_a_study_is_unpickled(storage, sampler, is_number, ran, tmp_path):
    url, text = storage.format(tmp_path), pickle.dumps(Attack(ran)).hex()
    backend = url
    if storage.startswith("journal"):
        file = optuna.storages.journal.JournalFileBackend(url.removeprefix("journal:///"))
        backend = optuna.storages.JournalStorage(file)
    study = optuna.create_study(storage=backend, study_name="s", direction="maximize")
    study.set_user_attr("search", {})
    attributes = {f"{prefix}optimizer:0": text for prefix in ("cma:", "sepcma:", "cmawm:")}
    attributes |= {"cma:generation": 0, "cmaes generation": 0 if is_number else text}
    space = {"gamma": Uniform(0, 1), "rate": Uniform(0, 1)}
    numbers = {name: optuna.distributions.FloatDistribution(0, 1) for name in space}
    for _ in range(12):
        study.add_trial(
            optuna.create_trial(
                value=1.0, params=dict.fromkeys(space, 0.5), distributions={**numbers},
                system_attrs=attributes, user_attrs=attributes,
            )
        )  # fmt: skip
    close_storage(study._storage)
    shared = SharedStudy(url, "s", space, 20, lambda index: {}, sampler)
    if is_number:
        assert shared.claim(()) is not None
    else:
        with pytest.raises(ValueError, match="has the cmaes generation '80"):
            shared.claim(())
    shared.close()


def test_the_metadata_of_a_checkpoint_imports_nothing(ran, tmp_path):
    directory, state, run = tmp_path / "checkpoints", {"x": jnp.arange(3.0)}, {"run_id": "a"}
    checkpoints = Checkpoints(directory, run)
    checkpoints.save(1, state, {}, whole=True)
    checkpoints.close()
    changed = 0
    for path in directory.rglob("_*METADATA"):
        text = path.read_text()
        for name in ("orbax.checkpoint", "jax.Array", "np.ndarray"):
            text = text.replace(name, "stranger")
        content = json.loads(text) | {"module_name": "stranger"}
        path.write_text(json.dumps(content))
        changed += 1
    assert changed
    seal.write(directory / "1", {"update": 1, "identity": run})  # by the stranger
    checkpoints = Checkpoints(directory, run)
    try:
        restored, _ = checkpoints.restore(jax.eval_shape(lambda: state), whole=True)
        np.testing.assert_array_equal(restored["x"], state["x"])
    except ValueError as error:
        assert "is damaged" in str(error)  # noqa: PT017
    finally:
        checkpoints.close()


@pytest.mark.usefixtures("no_pictures")
def test_pages_show_markup_and_templates_as_text(ran, tmp_path):
    text = SCRIPT + TEMPLATE
    run_dir = write_run(tmp_path / "run", algorithm=text, env_id=f"gymnax/{text}", torso=text)
    manifest = manifests.read(run_dir)
    manifests.write(
        run_dir, manifest | {"command": text, "git_commit": text, "versions": {text: text}}
    )
    row = {"update": 9, "steps": 2000, "seconds": 9.0, "episode_count": 1.0, "episode_return": 1.0}
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row | {text: 1.0, "__class__": 1.0}) + "\n")
    (run_dir / "summary.json").write_text(json.dumps({"interrupted": True, text: text}))
    video = run_dir / "video" / "x.mp4"
    video.parent.mkdir()
    video.write_bytes(text.encode())
    write_caption(video, text)
    compared = write_comparison(group_runs([read_run(run_dir)]), tmp_path / "page.html")
    trials = [trial(i, [float(i)], status=text, **{"a": text}) for i in range(3)]
    space = {"a": {"kind": "Choice", "values": [text, "b"]}}
    sweep = sweep_of(trials, env=text, algorithm=text, command=text, sampler=text, space=space)
    for page in (compared, write_report(sweep, tmp_path)):
        shown = page.read_text()
        assert "&lt;script&gt;alert(1)" in shown
        assert "{{ 7 * 191 }}" in shown
        assert SCRIPT not in shown
        assert "1337" not in shown
