"""Translate the flags of Habitat's PPO trainer into flags of `jaxrl train ppo`.

    jaxrl train ppo --preset huang --env-id Pong-v5 \
        $(python experiments/cluster/habitat_flags.py --use-gae --lr 2.5e-4 --num-processes 8 ...)

The flags are those of `ppo_args` in habitat-api's baselines/rl/ppo/utils.py (2019), the names that
pytorch-a2c-ppo-acktr gives them, and num_gpu. `SAME_VALUE` lists those that are only renamed. The
others:

* --use-gae, --tau (or --gae-lambda): --gae-lambda, 0.95 by default; 1 without --use-gae.
* --use-linear-lr-decay: --anneal; --no-anneal without it.
* --num-updates: --total-steps, the product with --num-steps and --num-processes, which it needs.
* --num-mini-batch counts parts of the environments if the agent has a memory, as there.
* --checkpoint-interval: a warning, since checkpoints are made by time.
* --clip-value is always added, since that trainer also clips the critic's change.

--core gru adds the memory that Habitat's agent has. Flags that are absent keep the preset's value.
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
"""Flags of jaxrl that take the value of a flag of Habitat."""
SWITCHES = ("use-gae", "use-linear-lr-decay")
OTHERS = ("tau", "gae-lambda", "num-updates", "checkpoint-interval")


def translate(argv: list[str]) -> list[str]:
    """Return jaxrl's flags for a command line of Habitat's trainer; names may have `_` or `-`.

    Raises:
      ValueError: for an unknown flag, one without a value, or num-updates without its factors.
    """
    given = parse(argv)
    flags = ["--clip-value"]
    for name, value in given.items():
        for translated in SAME_VALUE.get(name, ()):
            flags += [f"--{translated}", value]
    tau = given.get("tau", given.get("gae-lambda", "0.95"))
    flags += ["--gae-lambda", tau if "use-gae" in given else "1"]
    flags.append("--anneal" if "use-linear-lr-decay" in given else "--no-anneal")
    if "num-updates" in given:
        flags += ["--total-steps", str(count_steps(given))]
    if "checkpoint-interval" in given:
        warnings.warn(
            "--checkpoint-interval has no counterpart: jaxrl writes a checkpoint every 10 seconds",
            stacklevel=2,
        )
    return flags


def parse(argv: list[str]) -> dict[str, str]:
    """Return the values of Habitat's flags by name."""
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
            raise ValueError(f"a shell would change {flag} {value!r}; choose a value without signs")
        given[name] = value
    return given


def count_steps(given: dict[str, str]) -> int:
    """Return the environment steps of all updates."""
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
