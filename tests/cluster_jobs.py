"""What tests of clusters submit."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import fast_compile

from jaxrl.cli import submit

ROOT = Path(__file__).parents[1]
SEARCHED = f"{os.environ['PATH']}:/usr/sbin:/sbin"
"""The PATH of a cluster's programs."""

# It stands in for a training script: its first start waits for a signal, a resumed one ends.
TRAIN = """
import os, pathlib, sys, time
from jaxrl.distributed.processes import Interrupt
run_dir = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
run_dir.mkdir(parents=True, exist_ok=True)
with Interrupt() as interrupt:
    with (run_dir / "starts").open("a") as file:
        file.write(os.environ.get("SLURMD_NODENAME", "localhost") + "\\n")
    if (run_dir / "checkpoint").exists():
        sys.exit(0)
    until = time.monotonic() + 170
    while not interrupt.requested and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.5)  # the same signal may come twice
    (run_dir / "checkpoint").touch()
sys.exit(130)
"""
SWEEP = (
    "--", "jaxrl", "sweep", "--algo", "ppo", "--env-id", "CartPole-v1", "--num-envs", "2",
    "--trials", "6", "--lanes", "1", "--phases", "1", "--phase-length", "2", "--phase-unit",
    "updates", "--cpu-devices", "1", "--strategy", "vmap",
)  # fmt: skip


def enter_place(directory: Path, environment: Mapping[str, str], monkeypatch: Any) -> None:
    """Work in a directory with a script to submit, and in the environment of a cluster."""
    monkeypatch.chdir(directory)
    (directory / "train.py").write_text(TRAIN)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = {**environment, "PYTHONPATH": path, "XLA_FLAGS": fast_compile.FLAG}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def write_script(argv: Iterable[str], changes: Iterable[tuple[str, str]]) -> Path:
    """Write the script of a job named pong, whose lines may be changed; return its path."""
    submit.main(["--name", "pong", "--dry-run", *argv])
    script = Path("runs/pong.sh")
    for before, after in changes:
        assert before in script.read_text()
        script.write_text(script.read_text().replace(before, after))
    return script


def processes_of(run_dir: str | Path) -> list[int]:
    """Return the ids of the processes that train in a directory, named as in their commands."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True).stdout
    trains = rf"^\s*(\d+) \S*python\S* .*--run-dir {run_dir}(?: |$)"
    found = [int(number) for number in re.findall(trains, listed, re.MULTILINE)]
    # Others on this machine may train in a directory of this name.
    return [number for number in found if Path(f"/proc/{number}/cwd").resolve() == Path.cwd()]


def starts() -> list[str]:
    """Return the names of the machines on which `TRAIN` has started."""
    path = Path("runs/pong/starts")
    return path.read_text().split() if path.exists() else []


def missing(programs: Iterable[str], packages: str) -> str | None:
    """Return why there can be no cluster of these programs here; None if there can be one."""
    if os.geteuid() != 0:
        return "a cluster needs root"
    lacking = [name for name in programs if shutil.which(name, path=SEARCHED) is None]
    install = f"not installed (Debian: apt-get install {packages})"
    return f"{', '.join(lacking)} {install}" if lacking else None


def output_of(command: Iterable[object], environment: Mapping[str, str]) -> str:
    """Return what a command of a cluster prints."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr
