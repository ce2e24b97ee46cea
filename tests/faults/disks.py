"""Damage to the directory of a run or a sweep while it works."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults.jobs import call, check_named, check_succeeded, start
from faults.outcomes import SURVIVED, Damage, Kind, Outcome, Verdict
from faults.work import (
    Work,
    check_same,
    draw_run,
    draw_work,
    kill,
    saved_updates,
    undisturbed,
)

CAPABILITIES = 0x20080522  # version 3 of Linux's interface
OVERRIDE_PERMISSIONS = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


def mount(*arguments: str) -> None:
    """Call `mount`; skip the case where it is not permitted."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Damage(Verdict.SKIPPED, f"mounts are not permitted: {done.stderr.strip()}")


@contextlib.contextmanager
def small_disk(directory: Path, size: int) -> Iterator[Path]:
    """Mount a disk of that many bytes within a directory; yield its path."""
    disk = directory / "disk"
    disk.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}", "jaxrl", str(disk))
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill_disk(rng: random.Random, directory: Path) -> Outcome:
    """Let the disk be full at some moment, give it room, and resume."""
    work = draw_work(rng)
    whole, _ = undisturbed(work)
    with small_disk(directory, rng.randrange(8_192, 3 * whole["bytes"] // 2)) as disk:
        ended = call(work.train, disk / "work")
        if ended.status != 0:
            check_named(ended, str(disk))
        mount("-o", f"remount,size={10 * whole['bytes'] + 2**24}", str(disk))
        check_same(work, call(work.train, disk / "work"))
    return SURVIVED


def make_disk_read_only(rng: random.Random, directory: Path) -> Outcome:
    """Kill work, resume it on a disk that can only be read, and again where it can be written."""
    work = draw_work(rng)
    with small_disk(directory, 2**28) as disk:
        kill(rng, work, disk / "work")
        mount("-o", "remount,ro", str(disk))
        ended = call(work.train, disk / "work")
        if ended.status == 0:
            raise Damage(Verdict.SILENTLY_WRONG, "it resumed without files")
        check_named(ended, str(disk))
        mount("-o", "remount,rw", str(disk))
        check_same(work, call(work.train, disk / "work"))
    return SURVIVED


def train_with_permissions(work: Work, directory: Path) -> dict[str, Any]:
    """Train as a user whom permissions bind, which is not so for root; a job."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        header, sets = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
        libc.capget(header, sets)
        sets[0] &= ~OVERRIDE_PERMISSIONS  # the effective ones
        assert libc.capset(header, sets) == 0
    return work.train(directory)


def withdraw_permissions(rng: random.Random, directory: Path) -> Outcome:
    """Withdraw permissions at some moment, give them back, and resume."""
    work, run_dir = draw_work(rng), directory / "work"
    _, seconds = undisturbed(work)
    run_dir.mkdir()
    job = start(train_with_permissions, work, run_dir)
    job.is_running(rng.choice((0.0, rng.uniform(0, seconds))))
    folders = [path for path in (run_dir, run_dir / "checkpoints") if path.exists()]
    chosen = rng.choice(folders)
    chosen.chmod(rng.choice((0o000, 0o555)))
    ended = job.end()
    if ended.status != 0:
        check_named(ended, str(run_dir))
    chosen.chmod(0o755)
    check_same(work, call(work.train, run_dir))
    return SURVIVED


def delete_directory(rng: random.Random, directory: Path) -> Outcome:
    """Delete or move the directory of a run that would go on for ever, or its checkpoints.

    It must say so, unless it goes on in a way that can be resumed.
    """
    run, run_dir = dataclasses.replace(draw_run(rng), num_updates=10**6), directory / "run"
    job = start(run.train, run_dir)
    while not saved_updates(run_dir) and job.is_running(0.01):
        pass
    job.is_running(rng.uniform(0, 1))
    chosen = rng.choice((run_dir, run_dir / "checkpoints"))
    chosen.rename(directory / "moved")
    if rng.random() < 0.5:
        shutil.rmtree(directory / "moved", ignore_errors=True)
    if job.is_running(15.0):
        if not (saved_updates(run_dir) and (run_dir / "manifest.json").exists()):
            left = sorted(str(path.relative_to(directory)) for path in run_dir.glob("*"))
            job.signal(signal.SIGKILL)
            raise Damage(Verdict.LOST, f"trains on without {chosen.name}; it has {left}")
        job.signal(signal.SIGTERM)
        check_succeeded(job.end())
    else:
        check_named(job.end(), str(run_dir))
    return SURVIVED


def write_twice(rng: random.Random, directory: Path) -> Outcome:
    """Let two processes begin or resume the same work: one is refused, the other undisturbed."""
    work, run_dir = draw_work(rng), directory / "work"
    _, seconds = undisturbed(work)
    if rng.random() < 0.5:
        kill(rng, work, run_dir)
    first = start(work.train, run_dir)
    first.is_running(rng.choice((0.0, rng.uniform(0, seconds))))
    second = start(work.train, run_dir)
    both = [first.end(), second.end()]
    for ended in both:
        if ended.status == 0:
            check_same(work, ended)
        else:
            check_named(ended, str(run_dir))
    if all(ended.status for ended in both):
        raise Damage(Verdict.LOST, f"both were refused: {[ended.text for ended in both]}")
    check_same(work, call(work.train, run_dir))
    return SURVIVED


KINDS = (
    Kind("full-disk", fill_disk),
    Kind("read-only-disk", make_disk_read_only),
    Kind("no-permissions", withdraw_permissions),
    Kind("deleted-directory", delete_directory),
    Kind("two-writers", write_twice),
)
