"""What tests of clusters submit."""

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]

# It stands in for a training script: its first start waits for a signal, a resumed one ends.
TRAIN = """
import os, pathlib, signal, sys, time
run_dir = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
run_dir.mkdir(parents=True, exist_ok=True)

def stop(number, frame):
    (run_dir / "checkpoint").touch()
    sys.exit(130)

signal.signal(signal.SIGTERM, stop)
with (run_dir / "starts").open("a") as file:
    file.write(os.environ.get("SLURMD_NODENAME", "localhost") + "\\n")
if (run_dir / "checkpoint").exists():
    sys.exit(0)
time.sleep(170)
"""
SWEEP = (
    "--", "jaxrl", "sweep", "--algo", "ppo", "--env-id", "CartPole-v1", "--num-envs", "2",
    "--trials", "6", "--lanes", "1", "--phases", "1", "--phase-length", "2", "--phase-unit",
    "updates", "--cpu-devices", "1", "--strategy", "vmap",
)  # fmt: skip


def starts() -> list[str]:
    """Return the names of the machines on which `TRAIN` has started."""
    path = Path("runs/pong/starts")
    return path.read_text().split() if path.exists() else []


def output_of(command: Iterable[object], environment: Mapping[str, str]) -> str:
    """Return what a command of a cluster prints."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr
