"""What the Atari scripts share: the simulator's flags."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from typing import Any, TypeVar

import tyro

import jaxrl
from flags import Whole
from jaxrl.envs.host.base import OVERLAPPING
from launcher import RunArgs, launch

Args = TypeVar("Args")


@dataclasses.dataclass
class AtariArgs(RunArgs):
    """Flags of every script that trains on Atari through envpool."""

    env_id: str = "Pong-v5"
    total_steps: Whole = 10_000_000
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


def from_preset(presets: dict[str, Args], usual: str) -> Args:
    """The flags, whose defaults are those of the preset that `--preset` names."""
    chosen = usual
    for flag, value in itertools.pairwise([*sys.argv[1:], ""]):
        name, _, inline = flag.partition("=")
        if name == "--preset":
            chosen = inline or value
    # An unknown preset is left for the parser to refuse.
    default = presets.get(chosen, presets[usual])
    return tyro.cli(type(default), default=default)


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
    return launch(make_algorithm, args, config, options)
