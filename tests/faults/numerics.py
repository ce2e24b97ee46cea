"""NaN, infinity and numbers near overflow: they must not leave their lane, or end a run silently.

The other lanes of a population, and the other trials of a search, must be bit-identical to those
beside a healthy lane.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.outcomes import SURVIVED, Damage, Kind, Outcome, Verdict
from faults.poison import PLACES, Poisoned, PoisonState
from faults.warm import WARM
from faults.work import ALGORITHMS, digest, saved_updates

VALUES = (math.nan, math.inf, -math.inf, 1e38, -1e38, 3e38, 1e-45, -0.0)
LANES, TRIALS, PHASES = 4, 6, 2
STRATEGIES = ("vmap", "map", "shard-vmap", "shard-map")
SHARE = 0.4
"""Of the trials of a search that are poisoned."""
HEALTHY, UPDATES = 16, 8
"""Steps of a run before it is poisoned, and its updates: of 4 steps each."""


# --- in the warm process -------------------------------------------------------------------------


def poisoned(name: str, *arguments: Any) -> tuple[Any, Any]:
    """Return one of the smallest algorithms on poisoned environments, and its config."""
    import small_algorithms

    import jaxrl

    env: Any = Poisoned(jaxrl.make("CartPole-v1", num_envs=2), *arguments)
    return getattr(jaxrl, name.partition("-")[0])(env), small_algorithms.CONFIGS[name]


@functools.cache
def _lanes(name: str, strategy: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a program of four lanes, and the usual values of all traced fields `[W]`.

    Its arguments are data, so that one program serves all cases: values of the fields, and what is
    added to rewards and observations.
    """
    import dataclasses

    import jax
    import jax.numpy as jnp

    from jaxrl.config import is_static
    from jaxrl.training.population import population, stack

    algo, config = poisoned(name)
    traced = [field.name for field in dataclasses.fields(config) if not is_static(field)]
    names = [name for name in traced if getattr(config, name) is not None]
    usual = {n: jnp.full(LANES, getattr(config, n), jnp.float32) for n in names}
    lanes = population(algo, LANES, strategy)

    @jax.jit
    def train(fields: Any, reward: Any, obs: Any) -> Any:
        configs = stack(config, LANES, **fields)
        states = lanes.init(configs, jax.random.split(jax.random.key(0), LANES))
        simulation = states.simulation
        state = PoisonState(simulation.env_state.inner, reward, obs, jnp.zeros(LANES, jnp.int32))
        states = states._replace(simulation=simulation._replace(env_state=state))
        return lanes.update(configs, states, 4, 4)

    return train, usual


def train_lanes(name: str, strategy: str, place: str, lane: int, value: float) -> Any:
    """Train four lanes, one of them poisoned; return each lane's digest and the traced fields."""
    import jax
    import jax.numpy as jnp
    from small_algorithms import without_keys

    train, usual = _lanes(name, strategy)
    zeros = jnp.zeros(LANES)
    arguments = {"reward": zeros, "obs": zeros, **usual}
    if place:
        arguments[place] = arguments[place].at[lane].set(value)
    reward, obs = (arguments.pop(name) for name in PLACES)
    result = jax.device_get(without_keys(train(arguments, reward, obs)))
    digests = [digest(jax.tree.map(lambda x, i=i: x[i], result)) for i in range(LANES)]
    return {"lanes": digests, "places": [*PLACES, *usual]}


def run_search(name: str, strategy: str, directory: Path | None, *arguments: Any) -> Any:
    """Search; return which trials are poisoned, all scores, and the best trial.

    Args:
      directory: of a sweep; None for a search in one program.
      arguments: of `Poisoned`.
    """
    import jax
    import numpy as np
    import sweep_runs

    from jaxrl.tuning import Phase, RandomSearch, search, trial_key

    algo, config = poisoned(name, *arguments)
    space: Any = {"learning_rate": sweep_runs.SPACE["learning_rate"]}
    scheduler = RandomSearch(TRIALS, PHASES)
    key = jax.random.key(5)
    states = [jax.jit(algo.init)(config, trial_key(key, t)).simulation for t in range(TRIALS)]
    ill = [bool((np.array(s.env_state[1:3]) != 0).any()) for s in states]
    if directory is None:
        program = jax.jit(lambda key: search(algo, config, space, scheduler, 2, 3, key, strategy))
        result = program(key)
        scores, best = np.asarray(result.ledger.scores).tolist(), int(result.best_trial)
    else:
        result = sweep_runs.run(
            directory, scheduler, space, algo, config, num_lanes=2, strategy=strategy,
            phase=Phase(3), keep_best=1,
        )  # fmt: skip
        scores = [[_number(x) for x in trial["scores"]] for trial in result.summary["trials"]]
        best = -1 if result.best is None else result.best["trial"]
    return {"ill": ill, "scores": scores, "best": best}


def _number(score: Any) -> float:
    return math.nan if score is None else float(score)


def run(name: str, directory: Path, *arguments: Any) -> Any:
    """Train a single agent; return whether its learner is finite."""
    import jax
    import numpy as np

    import jaxrl

    algo, config = poisoned(name, *arguments)
    result = jaxrl.run(
        algo, config, seed=1, run_dir=directory, num_evaluations=0, chunk_updates=1, log_every=1,
        total_steps=UPDATES * algo.num_steps(config) * 2, checkpoint_seconds=0.0,
        progress_bar=False,
    )  # fmt: skip
    params = jax.tree.leaves(result.state.params)
    return all(np.isfinite(x).all() for x in params)


# --- cases ---------------------------------------------------------------------------------------


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return WARM.call(function, *arguments, seconds=200.0, limit=math.inf)


@functools.cache
def _healthy(function: Callable[..., Any], *arguments: Any) -> Any:
    return WARM.value_of(function, *arguments)


def poison_lane(rng: random.Random, directory: Path) -> Outcome:
    """Poison a lane of a population."""
    name, strategy = rng.choice(ALGORITHMS), rng.choice(STRATEGIES)
    whole = _healthy(train_lanes, name, strategy, "", 0, 0.0)
    lane, place, value = rng.randrange(LANES), rng.choice(whole["places"]), rng.choice(VALUES)
    ended = _call(train_lanes, name, strategy, place, lane, value)
    what = f"{place} {value} in lane {lane} of {name}, {strategy}"
    if ended.status != 0:
        raise Damage(Verdict.UNNAMED_ERROR, f"{what}: {ended.tail()}")
    others = [i for i in range(LANES) if i != lane]
    if changed := [i for i in others if ended.value["lanes"][i] != whole["lanes"][i]]:
        raise Damage(Verdict.SILENTLY_WRONG, f"{what} changed the lanes {changed}")
    return SURVIVED


def poison_search(rng: random.Random, directory: Path, is_sweep: bool) -> Outcome:
    """Poison some trials of a search."""
    name, place, value = rng.choice(ALGORITHMS), rng.choice(PLACES), rng.choice(VALUES[:6])
    strategy = rng.choice(STRATEGIES)
    arguments = [name, strategy, None, place]
    whole = _healthy(run_search, *arguments, 1.0, SHARE)
    sweep_dir = directory / "s" if is_sweep else None
    ended = _call(run_search, name, strategy, sweep_dir, place, value, SHARE)
    what = f"{place} {value} in some trials of {name}, {strategy}"
    if ended.status != 0:
        raise Damage(Verdict.UNNAMED_ERROR, f"{what}: {ended.tail()}")
    found = ended.value
    for trial, is_ill in enumerate(whole["ill"]):
        own, usual = found["scores"][trial], whole["scores"][trial]
        if not is_ill and repr(own) != repr(usual):
            detail = f"{what}: trial {trial} scored {own} instead of {usual}"
            raise Damage(Verdict.SILENTLY_WRONG, detail)
        if is_ill and not math.isfinite(value) and place == "reward" and _is_scored(own):
            raise Damage(Verdict.SILENTLY_WRONG, f"{what}: ill trial {trial} scored {own}")
    if place == "reward" and not math.isfinite(value) and whole["ill"][found["best"]]:
        raise Damage(Verdict.SILENTLY_WRONG, f"{what}: the best trial is ill: {found}")
    return SURVIVED


def _is_scored(scores: list[float]) -> bool:
    return any(map(math.isfinite, scores))


def poison_run(rng: random.Random, directory: Path) -> Outcome:
    """Poison a single run after some updates: it must end with a named error, and keep them."""
    name, place, value = rng.choice(ALGORITHMS), rng.choice(PLACES), rng.choice(VALUES)
    run_dir = directory / "run"
    ended = _call(run, name, run_dir, place, value, 1.0, HEALTHY)
    what = f"{place} {value} in a run of {name}"
    if ended.status == 0:
        if ended.value is not True:
            raise Damage(Verdict.SILENTLY_WRONG, f"{what}: ended well, but its learner has NaN")
        return SURVIVED
    if not ended.names("loss", "CartPole-v1"):
        raise Damage(Verdict.UNNAMED_ERROR, f"{what}: {ended.tail()}")
    if not saved_updates(run_dir):
        raise Damage(Verdict.LOST, f"{what}: no checkpoint is left")
    return SURVIVED


KINDS = (
    Kind("poison-lane", poison_lane, per_round=4),
    Kind("poison-search", functools.partial(poison_search, is_sweep=False), per_round=1),
    Kind("poison-sweep", functools.partial(poison_search, is_sweep=True), per_round=1),
    Kind("poison-run", poison_run, per_round=2),
)
