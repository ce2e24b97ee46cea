"""PPO on real Atari through envpool: 8 environments x 128 steps, episodic life and sign-clipped
rewards for the learner, raw scores of whole games in the logs.

    python experiments/ppo_atari.py --env-id Pong-v5 --total-steps 10_000_000
    python experiments/ppo_atari.py --preset laptop --env-id Pong-v5   # half an hour of a CPU core

The same as `jaxrl train ppo --preset huang` or `--preset laptop`. Flags change single settings.
"""

from __future__ import annotations

import sys

from jaxrl.cli import train
from jaxrl.cli.flags.arguments import exit_with_message

if __name__ == "__main__":
    with exit_with_message():
        sys.exit(train.main(["ppo", *sys.argv[1:]], presets=("huang", "laptop")))
