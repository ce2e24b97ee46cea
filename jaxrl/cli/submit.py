"""Submit a command to a cluster, as a job that survives preemption.

    jaxrl submit --name pong --gpus 1 --cpus 16 --hours 24 --container jaxrl-gpu.sif \
        -- jaxrl train ppo --preset huang --env-id Pong-v5 --seed 1
    jaxrl submit --name search --workers 8 --cpus 16 --hours 24 --extra partition=gpu account=lab \
        -- jaxrl sweep --algo a2c --env-id Pong-v5 --storage postgresql://user@host/db
    jaxrl submit --scheduler sge --name pong --dry-run -- experiments/ppo_atari.py

After -- comes jaxrl train, jaxrl sweep, or a script with the flags --run-dir and --resume. It is
written to runs/NAME.sh, its output goes to runs/, the run to runs/NAME unless the command has a
--run-dir. Before the job's time is up, or if it is preempted, the scheduler's signal reaches the
run as SIGTERM, which writes a checkpoint and ends with 130; the job returns to the queue and
resumes. A job that has finished or failed does not. jaxrl/cli/cluster/*.sh are the templates.

`--gpus N` gives `jaxrl train` the flag --devices N, unless it has --autotune; `jaxrl sweep` uses
all devices by itself.
`--workers N` makes an array of N tasks that search together: one study, a run directory each.
`--nodes N` starts the command on N machines of Slurm, with `--cluster`: one agent, trained by all.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import jinja2
import tyro

from jaxrl import checks
from jaxrl.cli import sweep
from jaxrl.cli.flags.config_file import read_config_file
from jaxrl.cli.flags.sweep import EXPLORERS
from jaxrl.cli.flags.train import TrainArguments, parse_command
from jaxrl.files.urls import JOURNAL
from jaxrl.training.progress.bar import format_clock

TEMPLATES = Path(__file__).parent / "cluster"
MAX_MARGIN = 65_535
"""Slurm's longest time between a signal and the end of a job."""
PROGRAMS = {"slurm": "sbatch", "sge": "qsub"}
"""The program that submits a job, by scheduler."""
PAUSING = ("halving", "hyperband", "asha")
"""Schedulers of `jaxrl sweep` that pause trials, whose agents all workers must see."""


@dataclasses.dataclass
class SubmitArguments:
    """A job; its command comes after --."""

    name: str
    """Name of the job and, under runs/, of its directory."""
    scheduler: Literal["slurm", "sge"] = "slurm"
    gpus: int = 0
    """GPUs of each node; jaxrl train uses all of them, or as many as its --autotune finds, a script
    those that it is told to use."""
    cpus: int = 1
    """Cores of each node."""
    nodes: int = 1
    """Machines that train one agent together, each in a process; Slurm only."""
    hours: float = 24.0
    """Until the job is stopped with a checkpoint and queued again."""
    margin: int = 120
    """Seconds before that end at which the run is told to stop. More for large replays on a slow
    disk."""
    container: str | None = None
    """Apptainer image; without one, the interpreter that runs `jaxrl submit`."""
    workers: int | None = None
    """Tasks of an array that share a study; the command needs jaxrl sweep's --storage."""
    extra: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Further options of sbatch or qsub, without dashes: partition=gpu, or 'q gpu.q'."""
    dry_run: bool = False
    """Write the job without submitting it."""


def make_job(args: SubmitArguments, command: Sequence[str]) -> str:
    """Return the script of the job that the flags and the command describe.

    Raises:
      ValueError: for bad values.
    """
    check_flags(args)
    flags = check_command(args, command)
    from_file = flags_of_file(command)
    run_dir, rest = take_flag(command, "--run-dir")
    run_dir = run_dir or take_flag(from_file, "--run-dir")[0]
    rest = [word for word in rest if word != "--resume"]
    if rest[0] == "jaxrl":
        rest = ["-m", *rest]

    def given(flag: str) -> str | None:
        return take_flag([*from_file, *rest], flag)[0]

    if flags is not None and not flags.autotune:
        if given("--devices") is None and args.gpus > 1:
            rest += ["--devices", str(args.gpus)]
            flags.devices = args.gpus
        check_devices(args, flags)
    if args.nodes > 1 and "--cluster" not in rest:
        rest.append("--cluster")
    if args.workers is not None:
        check_workers(args.workers, given)
        if given("--study") is None:
            rest += ["--study", args.name]
    python = [sys.executable]
    if args.container:  # -P: jaxrl of the image, not of a clone in the working directory
        python = ["python", "-P"] if rest[0] == "-m" else ["python"]
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters |= {"clock": format_clock, "quote": shlex.quote}
    return templates.get_template(f"{args.scheduler}.sh").render(
        dataclasses.asdict(args) | {"extra": [*itertools.chain(*args.extra)]},
        run_dir=run_dir or f"runs/{args.name}",
        command=shlex.join([*python, *rest]),
    )


def check_flags(args: SubmitArguments) -> None:
    """Raise `ValueError` for bad values."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", args.name):
        raise ValueError(f"--name must be a letter, then letters, digits, . _ -, got {args.name!r}")
    checks.integer("--margin", args.margin, 1, MAX_MARGIN)
    if not args.margin < args.hours * 3600 < math.inf:
        least = f"{args.margin / 3600:.2f} (--margin)"
        raise ValueError(f"--hours must be a number over {least}, got {args.hours:g}")
    for name, least in (("gpus", 0), ("cpus", 1), ("nodes", 1), ("workers", 1)):
        checks.optional(checks.integer, f"--{name}", getattr(args, name), least)
    if any("\n" in text or not text.strip() for text in itertools.chain(*args.extra)):
        raise ValueError("--extra takes options of one line each, such as partition=gpu")
    if args.nodes > 1 and (args.workers is not None or args.scheduler != "slurm"):
        raise ValueError("--nodes needs --scheduler slurm and no --workers")


def check_command(args: SubmitArguments, command: Sequence[str]) -> TrainArguments | None:
    """Return the flags of a command `jaxrl train`, None for another command.

    Raises:
      ValueError: if such a job cannot run the command, or it has bad values.
    """
    if not command:
        raise ValueError("no command; it comes after --, as in: -- jaxrl train ppo")
    if command[0] != "jaxrl":
        if not Path(command[0]).is_file():
            raise ValueError(
                f"{command[0]!r} is not a file; the command after -- starts with jaxrl or a script"
            )
        return None
    known = ("sweep",) if args.workers else ("train",) if args.nodes > 1 else ("train", "sweep")
    if (named := next(iter(command[1:]), "")) not in known:
        raise ValueError(f"such a job runs jaxrl {' or jaxrl '.join(known)}, got jaxrl {named}")
    if named == "sweep":
        sweep.parse(command[2:], "jaxrl sweep")
        return None
    _, flags = parse_command(command[2:], "jaxrl train")
    if flags.autotune and args.nodes > 1:
        raise ValueError("--autotune chooses the devices of one process; leave out it or --nodes")
    return flags


def check_devices(args: SubmitArguments, flags: TrainArguments) -> None:
    """Raise `ValueError` if a job's devices cannot share the environments of its agent."""
    if args.gpus and flags.devices > args.gpus:
        raise ValueError(f"--devices {flags.devices} is more than the job's --gpus {args.gpus}")
    if flags.num_envs % (num_devices := args.nodes * flags.devices):
        raise ValueError(
            f"--num-envs {flags.num_envs} cannot be shared evenly by the job's {num_devices} "
            "devices; ask for another number of either"
        )


def check_workers(num_workers: int, given: Callable[[str], str | None]) -> None:
    """Raise `ValueError` if the workers of a sweep could not share its study.

    Args:
      given: returns the value of a flag of the sweep, None if it is absent.
    """
    storage, name = given("--storage"), given("--scheduler")
    if storage is None:
        raise ValueError("--workers share a database: the command needs --storage")
    if num_workers == 1:
        return
    if storage.startswith(JOURNAL):
        raise ValueError(
            f"--workers share a database (sqlite:///..., postgresql://...), got --storage "
            f"{storage}: a journal is for one worker at a time"
        )
    if name in EXPLORERS:
        raise ValueError(f"--scheduler {name} trains all trials in one worker: leave --workers out")
    is_file = storage.startswith("sqlite")
    if name in PAUSING and given("--agents-dir") is None and not is_file:
        raise ValueError(
            f"--scheduler {name} pauses trials, which any worker may continue: the command "
            "needs --agents-dir, a folder that all machines see"
        )


def flags_of_file(command: Sequence[str]) -> list[str]:
    """Return the words of the file that a command of jaxrl names by --config; none without one."""
    file, _ = take_flag(command, "--config")
    if command[0] != "jaxrl" or file is None:
        return []
    algorithm = command[2] if command[1] == "train" else None
    return read_config_file(Path(file), algorithm)


def take_flag(command: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """Return the value of a flag, None if it is absent, and the command without the flag."""
    value, rest, words = None, [], iter(command)
    for word in words:
        name, equals, after = word.partition("=")
        if name.replace("_", "-") != flag:
            rest.append(word)
        elif (value := after if equals else next(words, None)) is None:
            raise ValueError(f"{flag} has no value")
    return value, rest


def main(argv: Sequence[str], prog: str | None = None) -> int:
    """Write the job that the flags describe and submit it; return the exit status."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    args, command = tyro.cli(SubmitArguments, args=argv[:end], prog=prog), argv[end + 1 :]
    script, program = make_job(args, command), PROGRAMS[args.scheduler]
    if not args.dry_run and shutil.which(program) is None:
        raise ValueError(f"there is no {program} here; --dry-run writes the job without it")
    path = Path("runs") / f"{args.name}.sh"
    path.parent.mkdir(exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)  # the command may have the password of a database
    path.write_text(script)
    if args.gpus > 1 and command[0] != "jaxrl" and take_flag(command, "--devices")[0] is None:
        print(
            f"note: {command[0]} is not told to use {args.gpus} GPUs; if it takes the flags of "
            f"jaxrl train, add --devices {args.gpus} to the command",
            file=sys.stderr,
        )
    if args.dry_run:
        print(f"{path}: submit it with {program} {path}")
    elif code := subprocess.run([program, str(path)]).returncode:
        raise ValueError(f"{program} {path} failed with {code}")
    return 0
