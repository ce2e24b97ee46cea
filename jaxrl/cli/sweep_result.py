"""Show what a sweep found: its tables, the winner as a command, and films of its agents."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterator
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from jaxrl import config as fields
from jaxrl import tuning
from jaxrl.algos import ALGORITHMS
from jaxrl.analysis.sweep_report import write_report
from jaxrl.analysis.sweep_tables import (
    TextTable,
    finals_table,
    front_table,
    leaderboard_table,
    phases_text,
    schedule_table,
    value_text,
    winner_scores,
)
from jaxrl.analysis.video import film, summarize_games, write_caption
from jaxrl.cli.flags.arguments import table_console, write_pair
from jaxrl.cli.flags.sweep import SweepArguments, make_environment
from jaxrl.cli.play import play_command, play_episodes
from jaxrl.envs import make
from jaxrl.files.json_values import values_from_json
from jaxrl.files.urls import storage_file
from jaxrl.presets import PRESETS
from jaxrl.training.policy import load_policy
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.tuning.sweeps import final_runs

SHOWN_TRIALS = 10
"""Trials of the table at the end, at most; the page has all."""
FAILED_FINALS = "in the finals each setting has a run that diverged or has no score"
FILMED_AGENT_EPISODES = 4
"""Whole games of each filmed agent; the numbers beside its film are their means."""


def report_result(args: SweepArguments, result: tuning.SweepResult) -> None:
    """Print the leaderboard and the best config as a command, and write the page."""
    sweep, finals = result.summary, finals_table(result.summary)
    print_table(leaderboard_table(sweep), str(result.run_dir), SHOWN_TRIALS)
    if elsewhere := sweep["elsewhere"]:
        storage = sweep["storage"]
        is_server = storage is not None and storage_file(storage) is None
        command = ["jaxrl", "report", str(result.run_dir), *(("--storage", storage) * is_server)]
        shown = f"{shlex.join(command)} shows all"
        print(f"the study has {elsewhere} more trials of other workers; {shown}")
    print_table(front_table(sweep), "Pareto front of the last two scores", SHOWN_TRIALS)
    what = "schedules" if result.best is not None and "schedule" in result.best else "settings"
    print_table(finals, f"finals: the same {what} with new seeds")
    print(f"phases: {phases_text(sweep)}")
    is_capped = args.max_steps is not None or args.max_seconds < math.inf
    left = sweep["scheduler"]["num_trials"] - len(sweep["trials"]) - elsewhere
    if is_capped and left > 0 and not result.interrupted:
        print(f"--max-steps or --max-seconds ended the sweep; trials that never began: {left}")
    if result.best is not None and result.interrupted:
        print(f"best so far: trial {result.best['trial']}, score {winner_scores(result.best)}")
        if final_runs.have_begun(result.run_dir):
            print("the search has ended, its finals have not")
    elif result.best is not None:
        whose = "best of this worker's trials" if elsewhere and not finals.rows else "winner"
        print(f"{whose}: trial {result.best['trial']}, score {winner_scores(result.best)}")
        if not finals.rows:
            print("this is the highest score of a phase; --final-trials chooses by new seeds")
        if "schedule" in result.best:
            print_table(schedule_table(sweep), "best schedule: the phases that led to the winner")
        else:
            of_whom = "config of that trial" if elsewhere and not finals.rows else "best config"
            print(f"{of_whom}: {format_command(args, result)}")
        for where, agent in agents_of(result.run_dir, result.best["trial"], bool(finals.rows)):
            print(f"{where}: {play_command(agent, sweep['env'], sweep['env_options'])}")
    elif elsewhere and not finals.rows:
        print("no trial of this worker has a finite score")
    elif finals.rows:
        print("no winner:", FAILED_FINALS)
    else:
        print("no winner: no trial has a finite score")
    print(f"report: {write_report(sweep, result.run_dir)}")


def agents_of(run_dir: Path, trial: int, has_finals: bool) -> Iterator[tuple[str, Path]]:
    """Yield the directories of a trial's agents that were kept, each with what it is.

    They are the best of its runs in the finals, and the one of the search.
    """
    runs = final_runs.runs_of(run_dir, trial) if has_finals else range(0)
    best_of_finals = run_dir / final_runs.FOLDER / "best"
    kept = [path for run in runs if (path := best_of_finals / f"trial-{run}").exists()]
    if kept:
        best = max(kept, key=lambda path: manifests.read(path, ["score"])["score"])
        yield "its best agent of the finals", best
    if (agent := run_dir / "best" / f"trial-{trial}").exists():
        yield "its agent at the highest score of the search" if has_finals else "its agent", agent


def print_table(table: TextTable, title: str, most: int | None = None) -> None:
    """Print a table, if it has rows.

    Args:
      most: rows to print; None for all.
    """
    if not table.rows:
        return
    rows = table.rows[:most]
    shown = f", the first {len(rows)} of {len(table.rows)}" if rows != table.rows else ""
    print(f"{title}{shown}")  # a title within the table would be as narrow as the table
    printed = Table()
    for name in table.head:
        printed.add_column(escape(name), justify="right", overflow="fold")
    for row in rows:
        printed.add_row(*map(escape, row))
    table_console().print(printed)


def film_agents(result: tuning.SweepResult, args: SweepArguments) -> None:
    """Film one episode of each agent that was kept, with its value and scores as a caption."""
    values = {trial["trial"]: trial["values"] for trial in result.summary["trials"]}
    agents = sorted((result.run_dir / "best").glob("trial-*"))
    kept = {directory.name for directory in agents}
    for old in (result.run_dir / "videos").glob("trial-*.*"):
        if old.name.partition(".")[0] not in kept:
            old.unlink()
    for directory in agents:
        manifest = manifests.read(directory, ["trial"])
        num_envs, trial = manifest["env"]["num_envs"], manifest["trial"]
        env = make_environment(args.env_id, num_envs, args.env_options)
        policy = load_policy(directory, env=env)
        path = result.run_dir / "videos" / f"{directory.name}.mp4"
        _, score, length = film(policy, path, args.seed)
        numbers = summarize_games(*play_episodes(policy, FILMED_AGENT_EPISODES, args.seed))
        text = f"{args.videos_by} {value_text(values[trial].get(args.videos_by, 'inactive'))}"
        write_caption(path, f"{text}, trial {trial}", numbers)
        print(f"{path}: score {score:g} in {length} steps, {text}")


def format_command(args: SweepArguments, result: tuning.SweepResult) -> str:
    """Return the command that trains an agent with the best trial's config."""
    assert result.best is not None
    values = values_from_json(result.best["values"])
    num_envs = values.pop("num_envs", args.num_envs)
    options = result.summary["env_options"]
    algo = ALGORITHMS[args.algo](make(args.env_id, num_envs, **options))
    config = fields.from_dict(algo.config_class, result.summary["config"]).replace(**values)
    preset = "minatar" if "MinAtar" in args.env_id else "cartpole"
    if algo.env.id.startswith("envpool/") and getattr(algo.env, "is_atari", False):
        preset = "atari"
    run_dir = shlex.quote(str(result.run_dir / "winner"))
    flags = [f"--preset {preset} --env-id {args.env_id} --num-envs {num_envs}"]
    flags.append("--anneal" if config.anneal_updates else "--no-anneal")
    flags.append(f"--run-dir {run_dir}")
    phase, phases = tuning.Phase(**result.summary["phase"]), result.summary["scheduler"]
    steps = phases["num_phases"] * phase.num_steps(num_envs * algo.num_steps(config))
    if math.isfinite(steps):  # settings for short trials may not suit longer ones
        flags.append(f"--total-steps {steps:_.0f}")
    sticky = "repeat_action_probability"
    if sticky in (PRESETS[args.algo][preset].atari_flags or {}) and sticky not in options:
        flags.append("--repeat-action-probability 0.0")
    if options:
        pairs = itertools.starmap(write_pair, options.items())
        flags.append(f"--env-options {shlex.join(pairs)}")
    preset_values = fields.to_dict(PRESETS[args.algo][preset].config)
    for name, value in fields.to_dict(config).items():
        flag = name.replace("_", "-")
        if value == preset_values[name]:
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words = value if isinstance(value, tuple | list) else [value]
            flags.append(shlex.join([f"--{flag}", *map(str, words)]))
    return f"jaxrl train {args.algo} {' '.join(flags)}"
