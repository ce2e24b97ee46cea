"""What must hold before JAX starts: two CPU devices, so that sharded programs are tested too."""

import gc
import importlib
import os
from pathlib import Path

import pytest

FLAG = "--xla_force_host_platform_device_count"
if FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}=2".strip()


@pytest.fixture(scope="module")
def quick_compilation():
    """For programs that run for milliseconds, and would be optimized for seconds."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def experiment(monkeypatch):
    """`experiment(name)`: a script of experiments/, as a module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "experiments"))
    return importlib.import_module


@pytest.fixture
def preset():
    """`preset(algorithm, name)`: the settings of `jaxrl train ALGORITHM --preset NAME`."""
    from jaxrl.cli.presets import PRESETS

    return lambda algorithm, name: PRESETS[algorithm][name]


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """A compiled program holds memory mappings, of which Linux gives a process 65,530."""
    yield
    import jax

    jax.clear_caches()
    gc.collect()
