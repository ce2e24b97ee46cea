"""The command `jaxrl` in the process of the tests."""

import subprocess
import sys

import pytest

from jaxrl.__main__ import main
from jaxrl.cli import sweep, train


@pytest.fixture
def jaxrl_command(monkeypatch, capsys, tmp_path):
    """`jaxrl_command(*words)` runs in `tmp_path`; its result has returncode, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command appends to it
    for module in (sweep, train):  # JAX runs already
        monkeypatch.setattr(module, "split_cpu", lambda *_: None)

    def run(*words):
        code, error = 0, ""
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = ended.code or 0
        if isinstance(code, str):
            code, error = 1, code
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(words, int(code), out, err + error)

    return run
