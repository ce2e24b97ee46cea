"""What the Atari scripts share: the simulator's flags."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from rich.console import Console

import jaxrl
from jaxrl.autotuning import Trial
from jaxrl.envs.hosted import OVERLAPPING
from jaxrl.parallel import num_cores
from launcher import RunArgs, launch


@dataclasses.dataclass
class AtariArgs(RunArgs):
    """Flags of every script that trains on Atari through envpool."""

    env_id: str = "Pong-v5"
    total_steps: int = 10_000_000
    num_envs: int = 8
    episodic_life: bool = True
    """Show the learner a lost life as an end."""
    reward_clip: bool = True
    """Show the learner the sign of rewards only."""
    repeat_action_probability: float = 0.0
    """Sticky actions (Machado et al. 2018)."""
    num_threads: int = 0
    """Threads of the simulators; 0 for one a core."""
    num_pools: int = 1
    """Split the environments over so many pools, which simulate while the policy looks at others;
    each has num_threads of its own."""
    asynchronous: bool = False
    """The pool that is ready first is next, instead of taking turns."""
    send_ahead: bool = False
    """Send each rollout's last actions before the agent learns, so that they simulate meanwhile;
    the policy that chose them lags by an update."""
    autotune: bool = False
    """Choose num_threads, num_pools and asynchronous for this machine by short trials; learning
    does not depend on them."""
    autotune_num_envs: bool = False
    """With --autotune, choose num_envs too, on which learning does depend."""


def launch_atari(make_algorithm: Any, args: AtariArgs, config: Any) -> jaxrl.RunResult:
    """Train as the flags say."""
    options: dict[str, Any] = {
        "episodic_life": args.episodic_life,
        "reward_clip": args.reward_clip,
        "repeat_action_probability": args.repeat_action_probability,
        "num_threads": args.num_threads,
    }
    for name in OVERLAPPING:
        if getattr(args, name) != getattr(AtariArgs, name):
            options[name] = getattr(args, name)
    if args.autotune_num_envs and not args.autotune:
        sys.exit("error: --autotune-num-envs needs --autotune")

    def tune(options: dict[str, Any]) -> dict[str, Any]:
        return tuned(make_algorithm, args, config, options)

    return launch(make_algorithm, args, config, options, tune if args.autotune else None)


def tuned(
    make_algorithm: Any, args: AtariArgs, config: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """The flags' settings that are fastest on this machine."""

    def build(num_envs: int = args.num_envs, **changes: Any) -> tuple[jaxrl.Algorithm, Any]:
        env = jaxrl.make(args.env_id, num_envs=num_envs, **options | changes)
        return make_algorithm(env), config

    def report(trial: Trial) -> None:
        rate = f"{trial.steps_per_second:8,.0f} steps/s" if trial.steps_per_second else "impossible"
        console.print(f"{rate:>16} with {_text(trial.settings)}", highlight=False)

    cores = num_cores()
    threads = sorted({2**i for i in range(cores.bit_length() + 1)} | {cores})
    knobs: dict[str, list[Any]] = {
        "num_threads": threads,
        "num_pools": [1, 2, 4, 8],
        "asynchronous": [False, True],
    }
    start = {"num_threads": cores, "num_pools": 1, "asynchronous": False}
    starts = [start, start | {"num_pools": 2}]
    if args.autotune_num_envs:
        knobs["num_envs"] = sorted({2**i for i in range(3, 11)} | {args.num_envs})
        starts = [start | {"num_envs": args.num_envs} for start in starts]
    console = Console(stderr=True)
    console.print("looking for the fastest settings")
    found = jaxrl.autotune(build, knobs, starts, report=report)
    console.print(f"fastest of {len(found.trials)}: {_text(found.best)}")
    return found.best


def _text(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
