"""The flags of Habitat's PPO trainer, as flags of jaxrl's PPO scripts.

    python experiments/ppo_atari.py --env-id Pong-v5 \
        $(python experiments/cluster/habitat_flags.py --use-gae --lr 2.5e-4 --num-processes 8 ...)

They are those of `ppo_args` in habitat-api's baselines/rl/ppo/utils.py (2019), which has them from
pytorch-a2c-ppo-acktr, whose names are taken too, and num_gpu.

| flag                     | here                  |                                               |
|--------------------------|-----------------------|-----------------------------------------------|
| --use-gae                | --gae-lambda          | --tau, 0.95 by default; 1 without --use-gae   |
| --tau, --gae-lambda      | --gae-lambda          | as there, of no effect without --use-gae      |
| --gamma                  | --gamma               |                                               |
| --lr                     | --learning-rate       |                                               |
| --use-linear-lr-decay    | --anneal              | --no-anneal without it                        |
| --eps                    | --adam-eps            |                                               |
| --clip-param             | --clip-epsilon        |                                               |
| --value-loss-coef        | --value-coef          | both multiply half the squared error          |
| --entropy-coef           | --entropy-coef        |                                               |
| --max-grad-norm          | --max-grad-norm       |                                               |
| --ppo-epoch              | --num-epochs          |                                               |
| --num-mini-batch         | --num-minibatches     | of environments, if the agent has a memory    |
| --num-processes          | --num-envs            |                                               |
| --num-steps              | --num-steps           |                                               |
| --num-updates            | --total-steps         | x --num-steps x --num-processes, which it     |
|                          |                       | needs                                         |
| --hidden-size            | --hidden-sizes,       | one layer; --core gru adds the memory that    |
|                          | --core-size           | Habitat's agent has                           |
| --seed                   | --seed                |                                               |
| --env-name               | --env-id              |                                               |
| --log-interval           | --log-every           |                                               |
| --checkpoint-folder      | --run-dir             |                                               |
| --checkpoint-interval    |                       | a warning: checkpoints are made by time       |
| --num_gpu                | --devices             |                                               |
| (always)                 | --clip-value          | that trainer clips the critic's change too    |

Flags that are absent leave the script's own default, the two switches excepted.
"""

from __future__ import annotations

import shlex
import sys
import warnings

SAME_VALUE = {
    "gamma": ("gamma",),
    "lr": ("learning-rate",),
    "eps": ("adam-eps",),
    "clip-param": ("clip-epsilon",),
    "value-loss-coef": ("value-coef",),
    "entropy-coef": ("entropy-coef",),
    "max-grad-norm": ("max-grad-norm",),
    "ppo-epoch": ("num-epochs",),
    "num-mini-batch": ("num-minibatches",),
    "num-processes": ("num-envs",),
    "num-steps": ("num-steps",),
    "hidden-size": ("hidden-sizes", "core-size"),
    "seed": ("seed",),
    "env-name": ("env-id",),
    "log-interval": ("log-every",),
    "checkpoint-folder": ("run-dir",),
    "num-gpu": ("devices",),
}
SWITCHES = ("use-gae", "use-linear-lr-decay")
OTHERS = ("tau", "gae-lambda", "num-updates", "checkpoint-interval")


def translate(argv: list[str]) -> list[str]:
    """jaxrl's flags for a command line of Habitat's trainer; `_` and `-` in names are one.

    Raises:
      ValueError: for an unknown flag, one without a value, or num-updates without its factors.
    """
    given = _parse(argv)
    flags = ["--clip-value"]
    for name, value in given.items():
        for here in SAME_VALUE.get(name, ()):
            flags += [f"--{here}", value]
    tau = given.get("tau", given.get("gae-lambda", "0.95"))
    flags += ["--gae-lambda", tau if "use-gae" in given else "1"]
    flags.append("--anneal" if "use-linear-lr-decay" in given else "--no-anneal")
    if "num-updates" in given:
        flags += ["--total-steps", str(_total_steps(given))]
    if "checkpoint-interval" in given:
        warnings.warn(
            "--checkpoint-interval has no counterpart: jaxrl writes a checkpoint every 10 seconds",
            stacklevel=2,
        )
    return flags


def _parse(argv: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("_", "-")
        if not flag.startswith("--") or name not in (*SAME_VALUE, *SWITCHES, *OTHERS):
            raise ValueError(f"unknown flag {flag!r}")
        if name not in SWITCHES and not equals:
            value = next(words, "--")
        if value.startswith("--") or (name in SWITCHES and equals):
            raise ValueError(f"{flag} takes {'no' if name in SWITCHES else 'a'} value")
        if value and shlex.quote(value) != value:
            raise ValueError(f"a shell would not pass {flag} {value!r} on as it is; choose another")
        given[name] = value
    return given


def _total_steps(given: dict[str, str]) -> int:
    total = 1
    for name in ("num-updates", "num-steps", "num-processes"):
        if name not in given:
            raise ValueError(f"--num-updates needs --{name}: jaxrl counts environment steps")
        if not given[name].isdecimal():
            raise ValueError(f"--{name} takes a whole number, got {given[name]!r}")
        total *= int(given[name])
    return total


if __name__ == "__main__":
    try:
        print(shlex.join(translate(sys.argv[1:])))
    except ValueError as error:
        sys.exit(f"error: {error}")
