"""Counters at the limits of their types: training over them must change nothing but the counts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from faults.jobs import call, check_named, value_of
from faults.outcomes import SURVIVED, Damage, Kind, Outcome, Verdict
from faults.work import ALGORITHMS, PURE, Run, differences, digest, rows_of

PERIODS = 840
"""A multiple of the periods of all algorithms: what depends on the update's remainder is alike."""
FEW, STEPS_OF_FEW = 10**6 // PERIODS * PERIODS, 10**7
"""Updates and steps of the run to compare with: schedules and bias corrections are over."""
MORE = 6  # updates, over the limit


def train_over(run: Run, anneal: int, updates: int, steps: int, directory: Path) -> dict[str, Any]:
    """Begin a run, count as if it had done these updates and steps, and resume it; a job.

    Returns:
      The new rows, with counts from zero, and the parameters.
    """
    import jax
    import jax.numpy as jnp
    from small_algorithms import CONFIGS, algorithm

    import jaxrl
    from jaxrl.training.run_dir import manifest as manifests
    from jaxrl.training.run_dir.checkpoint import Checkpoints

    algo = algorithm(run.algorithm, run.env)
    config = CONFIGS[run.algorithm].replace(anneal_updates=anneal)

    def train(num_updates: int) -> Any:
        return jaxrl.run(
            algo, config, seed=3, run_dir=directory, resume=True, log_every=1, num_evaluations=0,
            total_steps=num_updates * algo.env.num_envs * algo.num_steps(config), chunk_updates=2,
            progress_bar=False,
        )  # fmt: skip

    def count(path: Any, x: Any) -> Any:
        name = getattr(path[-1], "name", "")
        if name not in ("num_updates", "count") or not jnp.issubdtype(x.dtype, jnp.integer):
            return x
        return jnp.full_like(x, min(updates, jnp.iinfo(x.dtype).max))

    state = train(10).state
    identity = manifests.identity(manifests.read(directory))
    checkpoints = Checkpoints(directory / "checkpoints", identity)
    progress = checkpoints.progress() | {"update": updates, "steps": steps, "episodes": steps}
    checkpoints.save(updates, jax.tree_util.tree_map_with_path(count, state), progress, True)
    checkpoints.close()
    result = train(updates + MORE)
    rows = [row for row in rows_of(directory) if row["update"] > updates]
    for row in rows:
        row["update"] -= updates
        row["steps"] -= steps
    summary = result.summary
    return {
        "rows": rows,
        "totals": (summary["updates"] - updates, summary["valid_steps"] - steps),
        "episodes": summary["episodes"] - steps,
        "learner": digest(result.state.params),
    }


def train_over_limit(rng: random.Random, directory: Path) -> Outcome:
    """Train over 2^31 updates, which is refused, or over 2^53 steps."""
    run = Run(rng.choice(ALGORITHMS), rng.choice(PURE))
    updates, steps = rng.choice(((2**31, 10**10), (FEW, 2**53), (FEW, 2**31)))
    updates, steps = updates - rng.randrange(1, MORE), steps - rng.randrange(1, 20)
    few = FEW + updates % PERIODS
    # The entropy bonus of a2c-lstm is annealed too, which needs an end.
    anneal = 100 if run.algorithm == "a2c-lstm" else rng.choice((0, 100))
    expected = value_of(train_over, run, anneal, few, STEPS_OF_FEW, directory / "few")
    ended = call(train_over, run, anneal, updates, steps, directory / "many")
    if ended.status != 0:
        check_named(ended, f"{updates + MORE:,} updates")
        return SURVIVED
    if found := differences(ended.value, expected, tuple(expected)):
        at = f"{run}, anneal_updates={anneal}, {updates} updates, {steps} steps"
        raise Damage(Verdict.SILENTLY_WRONG, f"{at}: {found}")
    return SURVIVED


KINDS = (Kind("counters", train_over_limit),)
