"""The command `jaxrl` as a whole."""

import errno
import importlib.metadata
import io
import os
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
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_is_gone_and_a_full_disk_end_with_status_1(unbuffered):
    command, env = [sys.executable, "-m", "jaxrl", "--version"], os.environ.copy()
    env["PYTHONUNBUFFERED"] = unbuffered
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "w") as full:
        for out, error in (
            (write, ""),
            (full, "error: stdout: [Errno 28] No space left on device\n"),
        ):
            ended = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, env=env)
            assert (ended.returncode, ended.stderr) == (1, error)
    os.close(write)


def test_an_error_of_the_command_comes_before_one_of_stdout(monkeypatch):
    class Full(io.StringIO):
        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

        def fileno(self):
            return os.open(os.devnull, os.O_WRONLY)

    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(SystemExit, match="error: nowhere is not a sweep's directory"):
        main(["report", "nowhere"])


@pytest.mark.process
def test_a_reader_that_stops_reading_causes_no_traceback():
    command = [sys.executable, "-m", "jaxrl", "envs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1
