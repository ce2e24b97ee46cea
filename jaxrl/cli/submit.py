"""Submit a command to a cluster, as a job that survives preemption.

    jaxrl submit --name pong --gpus 1 --cpus 16 --hours 24 --container jaxrl-gpu.sif \
        -- jaxrl train ppo --preset huang --env-id Pong-v5 --seed 1
    jaxrl submit --name search --workers 8 --cpus 16 --hours 24 --extra partition=gpu account=lab \
        -- jaxrl sweep --algo a2c --env-id Pong-v5 --storage postgresql://user@host/db
    jaxrl submit --scheduler sge --name pong --dry-run -- experiments/ppo_atari.py

After -- comes a command of jaxrl, or a script with the flags --run-dir and --resume. The job is
written to runs/NAME.sh, its output goes to runs/, the run to runs/NAME unless the command has a
--run-dir. Before the job's time is up, or if it is preempted, the scheduler's signal reaches the
run as SIGTERM, which writes a checkpoint and ends with 130; the job returns to the queue and
resumes. A job that has finished or failed does not. jaxrl/cli/cluster/*.sh are the templates.

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
"""Seconds from the signal to the end of a job's time; cluster/slurm.sh has this number too."""


@dataclasses.dataclass
class SubmitArguments:
    """A job; its command comes after --."""

    name: str
    """Name of the job and, under runs/, of its directory."""
    scheduler: str = "slurm"
    """slurm or sge."""
    gpus: int = 0
    """GPUs of each node."""
    cpus: int = 1
    """Cores of each node."""
    nodes: int = 1
    """Machines that train one agent together, each in a process; Slurm only."""
    hours: float = 24.0
    """Until the job is stopped with a checkpoint and queued again."""
    container: str | None = None
    """Apptainer image; without one, the interpreter that runs `jaxrl submit`."""
    workers: int | None = None
    """Tasks of an array that share a study; the command needs jaxrl sweep's --storage."""
    extra: tuple[str, ...] = ()
    """Further options of sbatch or qsub, without dashes: partition=gpu, or 'q gpu.q'."""
    dry_run: bool = False
    """Write the job without submitting it."""


@dataclasses.dataclass(frozen=True)
class Job:
    """The values that fill a scheduler's template."""

    args: SubmitArguments
    command: tuple[str, ...]
    """The interpreter's arguments: a script or `-m jaxrl`, and flags but --run-dir and --resume."""
    run_dir: str
    """The run's directory; the tasks of an array have worker-1, worker-2, ... in it."""
    python: str


class Template(string.Template):
    """A template whose placeholders begin with @@, so that a shell script keeps its own $."""

    delimiter = "@@"


def make_job(args: SubmitArguments, command: Sequence[str]) -> Job:
    """Return the job that the flags and the command describe.

    Raises:
      ValueError: for bad values.
    """
    check_flags(args)
    if not command:
        raise ValueError("no command; it comes after --, as in: -- jaxrl train ppo")
    if command[0] != "jaxrl" and not Path(command[0]).is_file():
        raise ValueError(
            f"{command[0]!r} is not a file; the command after -- starts with jaxrl or a script"
        )
    run_dir, rest = take_flag(command, "--run-dir")
    rest = [word for word in rest if word != "--resume"]
    if rest[0] == "jaxrl":
        rest = ["-m", *rest]
    if args.nodes > 1 and "--cluster" not in rest:
        rest.append("--cluster")
    if args.workers is not None:
        if take_flag(rest, "--storage")[0] is None:
            raise ValueError("--workers share a database: the command needs --storage")
        if take_flag(rest, "--study")[0] is None:
            rest += ["--study", args.name]
    return Job(
        args,
        command=tuple(rest),
        run_dir=run_dir or f"runs/{args.name}",
        python="python" if args.container else sys.executable,
    )


def check_flags(args: SubmitArguments) -> None:
    """Raise `ValueError` for bad values."""
    if args.scheduler not in SCHEDULERS:
        known = ", ".join(SCHEDULERS)
        raise ValueError(f"--scheduler must be one of {known}, got {args.scheduler!r}")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", args.name):
        raise ValueError(f"--name must be a letter, then letters, digits, . _ -, got {args.name!r}")
    if not MARGIN < args.hours * 3600 < math.inf:
        raise ValueError(f"--hours must be a number over {MARGIN / 3600:.2f}, got {args.hours:g}")
    for name, least in (("gpus", 0), ("cpus", 1), ("nodes", 1), ("workers", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be >= {least}, got {value}")
    if any("\n" in text for text in args.extra):
        raise ValueError("--extra takes options of one line each")
    if args.nodes > 1 and (args.workers is not None or args.scheduler != "slurm"):
        raise ValueError("--nodes needs --scheduler slurm and no --workers")


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


def slurm_script(job: Job) -> str:
    """Return the job as a script for sbatch."""
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
        # Each task of an array has a job id, but the last one's is the id of the whole array.
        job='"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' if is_array else '"$SLURM_JOB_ID"',
        command=shlex.join([*_srun(job), *_container(job), job.python, *job.command]),
        worker=_worker(job),
    )


def sge_script(job: Job) -> str:
    """Return the job as a script for qsub."""
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
"""Functions that write a job's script, and the programs that submit it."""


def _fill(template: str, **values: object) -> str:
    return Template((TEMPLATES / template).read_text()).substitute(values)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"


def _run_dir(job: Job, task: str) -> str:
    return shlex.quote(job.run_dir) + ("" if job.args.workers is None else f"/worker-{task}")


def _worker(job: Job) -> str:
    """Return the flag by which a task that restarts on another machine keeps its trials."""
    return "" if job.args.workers is None else ' --worker "$run_dir"'


def _srun(job: Job) -> list[str]:
    """Return the command that starts a process on each node.

    It passes signals on. Once a process has ended, it gives the others a minute to write a
    checkpoint, and stops them if that process has failed.
    """
    # Slurm 22.05 and 23.02 do not pass on the job's own value: the release notes of 22.05.
    cpus = f"--cpus-per-task={job.args.cpus}"
    return [] if job.args.nodes == 1 else ["srun", cpus, "--wait=60"]


def _container(job: Job) -> list[str]:
    if job.args.container is None:
        return []
    return ["apptainer", "exec", *(["--nv"] if job.args.gpus else []), job.args.container]


def main(argv: Sequence[str], prog: str | None = None) -> int:
    """Write the job that the flags describe and submit it; return the exit status."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    args, command = tyro.cli(SubmitArguments, args=argv[:end], prog=prog), argv[end + 1 :]
    job = make_job(args, command)
    script, program = SCHEDULERS[args.scheduler]
    if not args.dry_run and shutil.which(program) is None:
        raise ValueError(f"there is no {program} here; --dry-run writes the job without it")
    path = Path("runs") / f"{args.name}.sh"
    path.parent.mkdir(exist_ok=True)
    path.write_text(script(job))
    if args.dry_run:
        print(f"{path}: submit it with {program} {path}")
    elif code := subprocess.run([program, str(path)]).returncode:
        raise ValueError(f"{program} {path} failed with {code}")
    return 0
