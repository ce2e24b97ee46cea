"""The command `jaxrl` as a whole."""

import importlib.metadata
import subprocess
import sys

import pytest

from jaxrl.__main__ import COMMANDS, main


def test_help_lists_all_commands(capsys):
    assert main([]) == main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_the_version_is_shown(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxrl {importlib.metadata.version('jaxrl')}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(jaxrl_command, name):
    shown = jaxrl_command(name, "--help")
    assert shown.returncode == 0
    assert "jaxrl" in shown.stdout


def test_an_unknown_command_is_named(jaxrl_command):
    assert "no command 'trian'; it has train, play" in jaxrl_command("trian").stderr


@pytest.mark.process
def test_a_reader_that_stops_reading_causes_no_traceback():
    command = [sys.executable, "-m", "jaxrl", "envs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
