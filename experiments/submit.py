"""Submit a script of experiments/ to a cluster, as a job that survives preemption.

    python experiments/submit.py --name pong --gpus 1 --cpus 16 --hours 24 \
        --container jaxrl-gpu.sif -- experiments/ppo_atari.py --env-id Pong-v5 --seed 1
    python experiments/submit.py --name search --workers 8 --cpus 16 --hours 24 \
        --extra partition=gpu account=lab -- experiments/sweep.py --algo a2c --env-id Pong-v5 \
        --storage postgresql://user@host/db
    python experiments/submit.py --scheduler sge --name pong --dry-run -- experiments/ppo_atari.py

The job is written to runs/NAME.sh, its output goes to runs/, the run to runs/NAME unless the
command has a --run-dir. Before its time is up, or if it is preempted, the scheduler's signal
reaches the run as SIGTERM, which writes a checkpoint and ends with 130; the job goes back into the
queue and resumes. One that has finished or failed does not. The jobs themselves are
experiments/cluster/*.sh.

`--workers N` makes an array of N tasks that search together: one study, a run directory each.
`--nodes N` starts the command on N machines of Slurm, with `--cluster`: one agent, trained by all.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import tyro

TEMPLATES = Path(__file__).parent / "cluster"
MARGIN = 120
"""Seconds from the signal to the end of the time that a job has; cluster/slurm.sh has it too."""


@dataclasses.dataclass
class Args:
    """A job; what it runs comes after --."""

    name: str
    """Of the job and, under runs/, of its directory."""
    scheduler: str = "slurm"
    """slurm or sge."""
    gpus: int = 0
    """Of each node."""
    cpus: int = 1
    """Of each node."""
    nodes: int = 1
    """Machines that train one agent together, each in a process; of Slurm."""
    hours: float = 24.0
    """Until the job is stopped with a checkpoint and queued again."""
    container: str | None = None
    """Apptainer image; without one, the interpreter that runs this script."""
    workers: int | None = None
    """Tasks of an array that share a study; the command needs sweep.py's --storage."""
    extra: tuple[str, ...] = ()
    """Further options of sbatch or qsub, without dashes: partition=gpu, or 'q gpu.q'."""
    dry_run: bool = False
    """Write the job without submitting it."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What a scheduler's script is made of."""

    args: Args
    command: tuple[str, ...]
    """A script and its flags, without --run-dir and --resume."""
    run_dir: str
    """Of an array, its tasks have worker-1, worker-2, ... in there."""
    python: str


class Template(string.Template):
    """Leaves a shell script's own $ alone."""

    delimiter = "@@"


def make_job(args: Args, command: Sequence[str]) -> Job:
    """The job that the flags and the command ask for.

    Raises:
      ValueError: for bad values.
    """
    if not command:
        raise ValueError("no command; it comes after --, as in: -- experiments/ppo_atari.py")
    if not Path(command[0]).is_file():
        raise ValueError(f"{command[0]!r} is no file; the command starts with a script")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", args.name):
        raise ValueError(f"name must be a letter, then letters, digits, . _ -, got {args.name!r}")
    if not MARGIN < args.hours * 3600 < math.inf:
        raise ValueError(f"hours must be a number over {MARGIN / 3600:.2f}, got {args.hours:g}")
    for what, value, least in (
        ("gpus", args.gpus, 0),
        ("cpus", args.cpus, 1),
        ("nodes", args.nodes, 1),
        ("workers", 1 if args.workers is None else args.workers, 1),
    ):
        if value < least:
            raise ValueError(f"{what} must be >= {least}, got {value}")
    if any("\n" in text for text in args.extra):
        raise ValueError("extra options must be of one line each")
    if args.nodes > 1 and (args.workers is not None or args.scheduler != "slurm"):
        raise ValueError("several nodes are of a Slurm job without --workers")
    run_dir, rest = take(command, "--run-dir")
    rest = [word for word in rest if word != "--resume"]
    if args.nodes > 1 and "--cluster" not in rest:
        rest.append("--cluster")
    if args.workers is not None:
        if take(rest, "--storage")[0] is None:
            raise ValueError("workers share a database: the command needs --storage")
        if take(rest, "--study")[0] is None:
            rest += ["--study", args.name]
    return Job(
        args,
        command=tuple(rest),
        run_dir=run_dir or f"runs/{args.name}",
        python="python" if args.container else sys.executable,
    )


def take(command: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """The value of a flag, None without it, and the command without the flag."""
    value, rest, words = None, [], iter(command)
    for word in words:
        name, equals, after = word.partition("=")
        if name.replace("_", "-") != flag:
            rest.append(word)
        elif (value := after if equals else next(words, None)) is None:
            raise ValueError(f"{flag} has no value")
    return value, rest


def slurm_script(job: Job) -> str:
    """The job for sbatch."""
    is_array = job.args.workers is not None
    options = [
        *([f"gres=gpu:{job.args.gpus}"] if job.args.gpus else []),
        *([f"array=1-{job.args.workers}"] if is_array else []),
        *job.args.extra,
    ]
    return _fill(
        "slurm.sh",
        name=job.args.name,
        log="%x-%A_%a.log" if is_array else "%x-%j.log",
        nodes=job.args.nodes,
        cpus=job.args.cpus,
        time=_clock(job.args.hours * 3600),
        directives="".join(f"#SBATCH --{option}\n" for option in options),
        run_dir=_run_dir(job, "$SLURM_ARRAY_TASK_ID"),
        # An array's tasks have job ids of their own, but the last one's is that of the whole array.
        job='"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' if is_array else '"$SLURM_JOB_ID"',
        command=shlex.join([*_srun(job), *_container(job), job.python, *job.command]),
        worker=_worker(job),
    )


def sge_script(job: Job) -> str:
    """The job for qsub."""
    options = [
        *([f"l gpu={job.args.gpus}"] if job.args.gpus else []),
        *([f"t 1-{job.args.workers}"] if job.args.workers is not None else []),
        *job.args.extra,
    ]
    ignore = ["sh", "-c", 'trap "" USR1 USR2; exec "$@"', "sh"]
    return _fill(
        "sge.sh",
        name=job.args.name,
        cpus=job.args.cpus,
        time=_clock(job.args.hours * 3600),
        soft_time=_clock(job.args.hours * 3600 - MARGIN),
        directives="".join(f"#$ -{option}\n" for option in options),
        run_dir=_run_dir(job, "$SGE_TASK_ID"),
        command=shlex.join([*_container(job), *ignore, job.python, *job.command]),
        worker=_worker(job),
    )


SCHEDULERS: dict[str, tuple[Callable[[Job], str], str]] = {
    "slurm": (slurm_script, "sbatch"),
    "sge": (sge_script, "qsub"),
}
"""A job's script, and the program that submits it."""


def _fill(template: str, **values: object) -> str:
    return Template((TEMPLATES / template).read_text()).substitute(values)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"


def _run_dir(job: Job, task: str) -> str:
    return shlex.quote(job.run_dir) + ("" if job.args.workers is None else f"/worker-{task}")


def _worker(job: Job) -> str:
    """A task that comes back on another machine goes on with its trials."""
    return "" if job.args.workers is None else ' --worker "$run_dir"'


def _srun(job: Job) -> list[str]:
    """A process on each node. It passes signals on, and gives the others a minute once one has
    ended: to write a checkpoint, or to be stopped if that one has failed."""
    # Slurm 22.05 and 23.02 do not pass the job's own on: the release notes of 22.05.
    cpus = f"--cpus-per-task={job.args.cpus}"
    return [] if job.args.nodes == 1 else ["srun", cpus, "--wait=60"]


def _container(job: Job) -> list[str]:
    if job.args.container is None:
        return []
    return ["apptainer", "exec", *(["--nv"] if job.args.gpus else []), job.args.container]


def main(argv: Sequence[str]) -> None:
    end = argv.index("--") if "--" in argv else len(argv)
    args, command = tyro.cli(Args, args=argv[:end]), argv[end + 1 :]
    if args.scheduler not in SCHEDULERS:
        raise ValueError(f"unknown scheduler {args.scheduler!r}; there are {', '.join(SCHEDULERS)}")
    script, program = SCHEDULERS[args.scheduler]
    text = script(make_job(args, command))
    if not args.dry_run and shutil.which(program) is None:
        raise ValueError(f"there is no {program} here; --dry-run writes the job without it")
    path = Path("runs") / f"{args.name}.sh"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    if args.dry_run:
        print(f"{path}: submit it with {program} {path}")
    elif code := subprocess.run([program, str(path)]).returncode:
        raise ValueError(f"{program} {path} failed with {code}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
