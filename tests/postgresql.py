"""A PostgreSQL server of its own, for tests of sweeps with several workers."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest


def postgresql_programs():
    """Return the directory of PostgreSQL's server programs; Debian keeps them off the PATH."""
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    newest_first = sorted(debian, key=lambda path: float(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    for directory in (*newest_first, *([Path(on_path).resolve().parent] if on_path else [])):
        if all((directory / name).exists() for name in ("initdb", "pg_ctl", "postgres")):
            return directory
    return None


@contextlib.contextmanager
def postgresql_server():
    """Run a server on a socket in a temporary directory; yield its URL. Or skip the test."""
    programs = postgresql_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    # Not pytest's tmp_path: a socket's path has at most 107 characters.
    directory = Path(tempfile.mkdtemp(prefix="jaxrl-pg-", dir="/tmp"))
    account: dict[str, Any] = {}
    if os.geteuid() == 0:  # the server refuses to run as root
        names = {user.pw_name for user in pwd.getpwall()}
        user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
        account = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(directory, user.pw_uid, user.pw_gid)

    def call(program, *arguments):
        done = subprocess.run(
            [programs / program, "-D", directory / "data", *arguments],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            **account,
        )
        log = directory / "log"
        assert done.returncode == 0, done.stdout + (log.read_text() if log.exists() else "")

    settings = f"-c listen_addresses='' -c unix_socket_directories={directory} -c fsync=off"
    try:
        call("initdb", "-U", "jaxrl", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        call("pg_ctl", "start", "-w", "-l", directory / "log", "-o", settings)
        try:
            yield f"postgresql://jaxrl@/postgres?host={directory}"
        finally:
            call("pg_ctl", "stop", "-w", "-m", "immediate")
    finally:
        shutil.rmtree(directory)
