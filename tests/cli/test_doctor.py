"""`jaxrl doctor`: what it finds, and its advice."""

import importlib.metadata
import itertools
import os
from types import SimpleNamespace

import jax
import pytest
from rich.text import Text

from jaxrl.cli import doctor
from jaxrl.cli.doctor import Finding, format_finding


@pytest.mark.slow
def test_a_machine_that_runs_the_tests_can_train(capsys, monkeypatch):
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)  # two seconds end at once
    monkeypatch.setattr(doctor, "time", clock)
    assert doctor.main([]) == 0
    shown = capsys.readouterr().out
    for what in ("Python", "jax", "devices", "PPO on CartPole", "Atari through envpool"):
        assert f"ok {what}" in shown
    assert "everything works" in shown


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


def test_a_checkout_that_is_not_installed_is_broken(monkeypatch):
    def requires(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    (finding,) = doctor.packages()
    assert finding.mark == "broken"
    assert finding.advice.startswith("pip install -e ")


def test_absent_packages_come_with_their_command(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    found = {finding.subject: finding for finding in doctor.optional_parts()}
    assert found["optuna"].advice == "pip install 'jaxrl[tune]'"
    assert "absent" in format_finding(found["optuna"])


def test_limits_of_old_versions_come_with_advice(monkeypatch):
    installed = {"jax": "0.10.2", "envpool": "1.2.5"}
    monkeypatch.setattr(importlib.metadata, "version", installed.get)
    monkeypatch.setattr(doctor.ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    found = {finding.subject: finding for finding in doctor.known_limits()}
    assert set(found) == {"jax", "envpool", "Procgen", "mujoco"}
    assert {finding.mark for finding in found.values()} == {"limited"}
    assert "Python 3.12" in found["envpool"].advice
    assert "libqt5gui5" in found["Procgen"].advice
    monkeypatch.setenv("MUJOCO_GL", "egl")
    installed.update(jax="0.11.0", envpool="1.2.7")
    assert list(doctor.known_limits()) == []


def test_packages_that_are_not_installed_are_not_old(monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert not doctor.older_than("envpool", "1.2.7")
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name)
    found = {finding.subject: finding for finding in doctor.optional_parts()}
    assert found["Box2D"].found.startswith("installed; for LunarLander")


def test_a_gpu_that_is_not_used_is_broken(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert doctor.accelerator().advice == "pip install 'jaxrl[cuda]'"
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert doctor.accelerator().advice == "unset JAX_PLATFORMS=cpu"


@pytest.fixture
def cache_is_on():
    """Let JAX keep what it compiles, and restore what was set, also if the test fails."""
    was_on = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", True)
    yield
    jax.config.update("jax_enable_compilation_cache", was_on)


@pytest.mark.usefixtures("cache_is_on")
def test_a_cache_that_cannot_be_written_or_has_no_place_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert doctor.compilation_cache().mark == "ok"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "set JAX_COMPILATION_CACHE_DIR" in doctor.compilation_cache().advice
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setattr("jaxrl.training.compilation.cache_directory", lambda: None)  # no home
    finding = doctor.compilation_cache()
    assert finding.mark == "limited"
    assert "JAX_COMPILATION_CACHE_DIR" in finding.advice
    monkeypatch.setattr("jaxrl.training.compilation.cache_directory", lambda: tmp_path / "own")
    assert doctor.compilation_cache()[1:3] == (str(tmp_path / "own" / "xla"), "ok")
    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert "another user's" in doctor.compilation_cache().found
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # which JAX takes for no cache
    assert doctor.compilation_cache().mark == "absent"
    jax.config.update("jax_enable_compilation_cache", False)
    assert doctor.compilation_cache().mark == "absent"


def test_a_check_that_fails_is_a_finding():
    def self_test():
        raise RuntimeError("no such instruction\nand more")

    found = doctor.guarded(self_test)
    assert found[:3] == ("self test", "RuntimeError: no such instruction", "broken")


def test_brackets_are_printed():
    finding = Finding("x", "[1, 2] [red]", "broken", "pip install 'jaxrl[cuda]'")
    shown = Text.from_markup(format_finding(finding)).plain
    assert shown == " broken x [1, 2] [red] -> pip install 'jaxrl[cuda]'"
