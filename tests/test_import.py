"""Importing jaxrl leaves out heavy modules, the command line, and the choice of devices."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


def run_python(code, environment=None):
    """Return what a new interpreter prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_heavy_modules_are_imported_when_they_are_used():
    code = """
import sys, jaxrl
heavy = {"scipy.stats", "orbax", "matplotlib", "seaborn", "tyro", "jaxrl.cli"}
simulators = {"gymnax", "envpool", "gymnasium"}
print(not (heavy | simulators) & set(sys.modules))
jaxrl.make("CartPole-v1")
print("gymnax" in sys.modules, "envpool" not in sys.modules)
print(not {"pandas", "matplotlib.axes"} & set(sys.modules))  # of seaborn and matplotlib.pyplot
from gymnax.environments.bsuite import catch
from gymnax.environments.misc import pong
import matplotlib.pyplot
print(catch.plt.subplots is matplotlib.pyplot.subplots)
print(pong.sns.color_palette("cubehelix", 2) is not None, "pandas" in sys.modules)
"""
    assert run_python(code).split() == ["True"] * 7


def test_public_modules_are_imported_when_they_are_used():
    code = """
import sys, jaxrl
print("jaxrl.tuning" not in sys.modules)
print(jaxrl.tuning.HyperTrick(8, 2).num_phases, "cartpole" in jaxrl.presets.PRESETS["ppo"])
print(hasattr(jaxrl, "tunning"))
"""
    assert run_python(code).split() == ["True", "2", "True", "False"]


def test_importing_starts_no_backend():
    """The number of CPU devices can still be chosen afterwards."""
    code = """
import jax, jaxrl, jaxrl.tuning, jaxrl.cli.train
from jaxrl.distributed.spread import split_cpu
split_cpu(3)
print(len(jax.devices()))
"""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    assert run_python(code, environment) == "3\n"
