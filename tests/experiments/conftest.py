"""Fixtures of the experiments' tests."""

from ctypes.util import find_library

import pytest


@pytest.fixture
def miniworld(monkeypatch):
    """Let MiniWorld draw without a display, or skip the test where it cannot."""
    if find_library("EGL") is None:
        pytest.skip("MiniWorld draws by EGL (Debian: apt-get install libegl1)")
    monkeypatch.setenv("PYGLET_HEADLESS", "1")  # read on import
    return pytest.importorskip("miniworld", reason="it is no dependency of jaxrl")
