"""`python -m jaxrl`: what it finds, lists and says."""

import importlib.metadata
import os
import subprocess
import sys

from rich.text import Text

from jaxrl.__main__ import line, main
from jaxrl.cli import doctor
from jaxrl.cli.doctor import Finding


def test_a_machine_that_runs_the_tests_is_fine(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for what in ("Python", "jax", "devices", "PPO on CartPole", "Atari through envpool"):
        assert f"ok {what}" in said
    assert "everything works" in said


def test_missing_and_wrong_versions_say_what_to_install(monkeypatch):
    def version(name):
        if name == "optax":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.1" if name == "gymnax" else "99"

    monkeypatch.setattr(
        importlib.metadata,
        "requires",
        lambda name: ["gymnax>=1.0.1,<2", "optax>=0.2", "rich>=1", "ruff; extra == 'dev'"],
    )
    monkeypatch.setattr(importlib.metadata, "version", version)
    gymnax, optax, rich = doctor.packages()
    assert gymnax == Finding("gymnax", "0.1", "broken", "pip install 'gymnax<2,>=1.0.1'")
    assert optax == Finding("optax", "missing", "broken", "pip install 'optax>=0.2'")
    assert rich == Finding("rich", "99")


def test_a_checkout_that_is_not_installed_is_said(monkeypatch):
    def requires(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    (finding,) = doctor.packages()
    assert finding.mark == "broken"
    assert finding.advice.startswith("pip install -e ")


def test_what_is_absent_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    found = {finding.what: finding for finding in doctor.optional_parts()}
    assert found["optuna"].advice == "pip install 'jaxrl[tune]'"
    assert "absent" in line(found["optuna"])


def test_what_old_versions_cannot_do_is_said_with_the_way_out(monkeypatch):
    installed = {"jax": "0.10.2", "envpool": "1.2.5"}
    monkeypatch.setattr(importlib.metadata, "version", installed.get)
    monkeypatch.setattr(doctor.ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    found = {finding.what: finding for finding in doctor.known_limits()}
    assert set(found) == {"jax", "envpool", "Procgen", "mujoco"}
    assert {finding.mark for finding in found.values()} == {"limited"}
    assert "Python 3.12" in found["envpool"].advice
    assert "libqt5gui5" in found["Procgen"].advice
    monkeypatch.setenv("MUJOCO_GL", "egl")
    installed.update(jax="0.11.0", envpool="1.2.7")
    assert list(doctor.known_limits()) == []


def test_what_is_not_installed_is_no_obstacle(monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert not doctor.older_than("envpool", "1.2.7")
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name)
    found = {finding.what: finding for finding in doctor.optional_parts()}
    assert found["Box2D"].found.startswith("installed; for LunarLander")


def test_a_gpu_that_is_not_used_is_broken(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert doctor.accelerator().advice == "pip install 'jaxrl[cuda]'"
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert doctor.accelerator().advice == "unset JAX_PLATFORMS=cpu"


def test_a_cache_that_cannot_be_written_is_broken(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert doctor.compilation_cache().mark == "ok"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "set JAX_COMPILATION_CACHE_DIR" in doctor.compilation_cache().advice


def test_a_check_that_fails_is_a_finding():
    def self_test():
        raise RuntimeError("no such instruction\nand more")

    found = doctor.guarded(self_test)
    assert found[:3] == ("self test", "RuntimeError: no such instruction", "broken")


def test_ids_are_listed_with_their_spaces(capsys):
    assert main(["envs", "breakout"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "gymnax/Breakout-MinAtar  bool[10, 10, 4]  Discrete(3)",
        "envpool/Breakout-v5  uint8[84, 84, 4]  Discrete(4)",
        "gymnasium/ALE/Breakout-v5  uint8[84, 84, 4]  Discrete(4)",
    ]


def test_patterns_are_those_of_shells(capsys):
    assert main(["envs", "envpool/PointMaze_Open-v?"]) == 0
    (said,) = capsys.readouterr().out.splitlines()
    assert said.endswith("observation: float32[4]}  float32[2]")


def test_no_match_is_said(capsys):
    assert main(["envs", "zzz"]) == 1
    assert "no id matches 'zzz'" in capsys.readouterr().err


def test_brackets_are_shown():
    finding = Finding("x", "[1, 2] [red]", "broken", "pip install 'jaxrl[cuda]'")
    shown = Text.from_markup(line(finding)).plain
    assert shown == " broken x [1, 2] [red] -> pip install 'jaxrl[cuda]'"


def test_a_reader_that_stops_reading_is_no_error():
    command = [sys.executable, "-m", "jaxrl", "envs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_without_a_home_the_way_out_is_named(monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setattr("jaxrl.training.compilation.cache_directory", lambda: None)
    finding = doctor.compilation_cache()
    assert finding.mark == "broken"
    assert "JAX_COMPILATION_CACHE_DIR" in finding.advice
