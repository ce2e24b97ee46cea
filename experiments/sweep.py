"""Search hyperparameters: the same as `jaxrl sweep`.

python experiments/sweep.py --algo a2c --env-id Pong-v5 --trials 100 --lanes 16
"""

from __future__ import annotations

import sys

from jaxrl.cli import sweep
from jaxrl.cli.flags.arguments import exit_with_message

if __name__ == "__main__":
    with exit_with_message():
        sys.exit(sweep.main(sys.argv[1:]))
