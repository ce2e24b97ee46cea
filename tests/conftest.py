"""Set-up that every test shares; the environment variables must be set before JAX starts."""

import dataclasses
import functools
import gc
import importlib
import math
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from fast_compile import FLAG, TWO_DEVICES, UNOPTIMIZED

# Programs of tests compile fast rather than run fast, also in the processes that tests start. Set
# both variables to test programs that are compiled as users compile them.
os.environ.setdefault("XLA_FLAGS", f"{TWO_DEVICES} {FLAG}")
os.environ.setdefault(UNOPTIMIZED, "1")

# The processes that tests start import this checkout and these helpers.
TESTS = Path(__file__).parent
paths = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

# One cache of compiled programs for all processes of a test run: the workers of pytest-xdist and
# the processes that tests start inherit it.
CACHE = None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    CACHE = tempfile.mkdtemp(prefix="jaxrl-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def pytest_collection_finish():
    """Keep what is imported out of garbage collections, of which tracing causes many.

    Whole collections find little, and took a tenth of the time of some modules.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 10, 1_000)


def pytest_unconfigure():
    """Remove the cache, in the process that made it."""
    if CACHE is not None:
        shutil.rmtree(CACHE, ignore_errors=True)


class Connection(sqlite3.Connection):
    """A connection to SQLite that warns if it was not closed, as all do from Python 3.13 on."""

    is_closed = False

    def close(self):
        super().close()
        self.is_closed = True

    def __del__(self):
        if not self.is_closed:
            warnings.warn(f"unclosed database in {self!r}", ResourceWarning, 2, source=self)


@pytest.fixture(scope="session", autouse=True)
def _warn_of_open_databases():
    with pytest.MonkeyPatch.context() as patch:
        if sys.version_info < (3, 13):
            for module in (sqlite3, sqlite3.dbapi2):
                connect = functools.partial(module.connect, factory=Connection)
                patch.setattr(module, "connect", connect)
        yield


MAPPINGS = Path("/proc/self/maps")
MANY_MAPPINGS = 20_000


@pytest.fixture
def optimized():
    """Optimize the programs of a test, which run for longer than they compile."""
    import jax

    before = jax.config.read(UNOPTIMIZED.lower())
    jax.config.update(UNOPTIMIZED.lower(), False)
    yield
    jax.config.update(UNOPTIMIZED.lower(), before)


@pytest.fixture
def toy_for_ppo(monkeypatch):
    """Let code of the documentation train an algorithm that compiles fast."""
    from toy_algorithm import ToyConfig, toy

    import jaxrl

    ppo_config = jaxrl.PPOConfig

    def make_config(**changes):
        ppo_config(**changes)  # the code's own fields must exist
        known = {field.name for field in dataclasses.fields(ToyConfig)}
        return ToyConfig(**{name: x for name, x in changes.items() if name in known})

    monkeypatch.setattr(jaxrl, "ppo", toy)
    monkeypatch.setattr(jaxrl, "PPOConfig", make_config)


@pytest.fixture
def no_pictures(monkeypatch):
    """Draw none of the pictures of a sweep's page."""
    monkeypatch.setattr("jaxrl.analysis.sweep_report.plot", lambda *_: [])


@pytest.fixture
def signals_while_sealing(monkeypatch):
    """Send SIGTERM while checkpoints are sealed; list those that do more than set `requested`."""
    from jaxrl.distributed import processes
    from jaxrl.files import seal

    counted, write = [], seal.write

    def signal_and_write(folder, entries):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        write(folder, entries)

    monkeypatch.setattr(processes, "SAME_REQUEST_SECONDS", 60.0)
    monkeypatch.setattr(seal, "write", signal_and_write)
    before = signal.signal(signal.SIGTERM, lambda *_: counted.append("SIGTERM"))
    yield counted
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def experiment(monkeypatch):
    """Return `import_script(name)`, which imports a script of experiments/ as a module."""
    monkeypatch.syspath_prepend(str(TESTS.parent / "experiments"))
    return importlib.import_module


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Free the programs of earlier modules before their memory mappings are too many.

    A process may have 65,530 mappings. Modules share programs, so they are not freed each time.
    """
    yield
    if num_mappings() > MANY_MAPPINGS:
        import jax

        jax.clear_caches()
        gc.collect()


def num_mappings():
    """Return the memory mappings of this process; infinity where the system does not tell."""
    try:
        return MAPPINGS.read_bytes().count(b"\n")
    except OSError:
        return math.inf
