"""A check of environments against the `Env` contract, for authors of adapters."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.envs.host import callback
from jaxrl.envs.host.errors import message_in
from jaxrl.spaces import (
    ACTION_MASK,
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    Space,
    has_action_mask,
    next_allowed,
    zeros,
)
from jaxrl.types import Array, Env, PyTree, TimeStep

MEMBERS = (
    "id", "num_envs", "options", "observation_space", "action_space", "checkpointable", "init",
    "step", "for_evaluation",
)  # fmt: skip
METHODS = (
    "init", "step", "for_evaluation", "for_rendering", "spread", "restart", "send_and_receive"
)  # fmt: skip
FLAGS = ("terminated", "truncated", "first")
FAR = 10.0
"""Bounds of actions that are so much larger or smaller than 1 give a warning."""


def check_env(env: Env, num_steps: int = 200, seed: int = 0) -> None:
    """Check the spaces, shapes and some steps of an environment.

    Args:
      num_steps: steps of random actions, which no action mask forbids; more than an episode has,
        or a warning says that no end was checked.
      seed: of the actions and of the environment's key.

    Raises:
      ValueError: with every violation of the contract (`jaxrl.types`) that was found.
    """
    num_steps, seed = checks.integer("num_steps", num_steps), checks.seed(seed)
    parts = (
        lambda: _check_members(env),
        lambda: _check_shapes(env, seed),
        lambda: _check_steps(env, num_steps, seed),
    )
    for check in parts:  # each one needs that the former finds nothing
        if problems := list(check()):
            raise ValueError(
                f"{getattr(env, 'id', env)!r} breaks the contract of environments:\n  - "
                + "\n  - ".join(problems)
            )
    for doubt in _doubts(env):
        warnings.warn(f"{env.id}: {doubt}", stacklevel=2)


def _check_members(env: Any) -> Iterator[str]:
    """Yield problems of attributes and spaces."""
    missing = [name for name in MEMBERS if not hasattr(env, name)]
    if missing:
        yield f"it has no {', '.join(missing)}"
        return
    for name in METHODS:
        if hasattr(env, name) and inspect.getattr_static(env, name, None) is None:
            yield (
                f"its class has no {name}, which __getattr__ takes from wrapped environments, "
                "without what the wrapper changes: define it, or let __getattr__ refuse it"
            )
    try:
        hash(env)
    except TypeError:
        yield "it cannot be hashed, which jit needs: make it a frozen dataclass of plain values"
    if type(env.num_envs) is not int or env.num_envs < 1:
        yield f"num_envs must be an integer >= 1, is {env.num_envs!r}"
    if not isinstance(env.observation_space, Box | Dict):
        yield f"observation_space must be a jaxrl.Box or Dict, is {env.observation_space!r}"
    if not isinstance(env.action_space, Discrete | MultiDiscrete | Box):
        yield f"action_space must be Discrete, MultiDiscrete or Box, is {env.action_space!r}"
        return
    try:
        has_action_mask(env.observation_space, env.action_space)
    except ValueError as error:
        yield str(error)


def _check_shapes(env: Env, seed: int) -> Iterator[str]:
    """Yield problems of the results of `init` and `step`, without running them."""
    outcome = jax.eval_shape(env.init, jax.random.key(seed))
    yield from _check_outcome("init", env, outcome)
    if not _is_pair(outcome):
        return
    state, start = outcome
    action = jax.ShapeDtypeStruct((env.num_envs, *env.action_space.shape), env.action_space.dtype)
    outcome = jax.eval_shape(env.step, jax.random.key(seed), state, action)
    yield from _check_outcome("step", env, outcome)
    if not _is_pair(outcome):
        return
    if jax.tree.structure((state, start)) != jax.tree.structure(outcome):
        before, after = _leaf_names(state, start), _leaf_names(*outcome)
        names = ", ".join(sorted(before ^ after))
        found = f"only one of them has {names}" if names else "their containers or constants differ"
        yield (
            "step must return a state and a TimeStep of the structure that init returns, but "
            + found
        )
        return
    after, _ = outcome
    for path, old in jax.tree_util.tree_leaves_with_path(state):
        new = dict(jax.tree_util.tree_leaves_with_path(after))[path]
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            name = jax.tree_util.keystr(path) or "itself"
            dtypes = f"{_describe(old)} after init, {_describe(new)} after step"
            yield f"the state's leaf {name} is {dtypes}"
    if env.for_evaluation(2).num_envs != 2:
        yield f"for_evaluation(2) must have 2 environments, has {env.for_evaluation(2).num_envs}"


def _leaf_names(state: Any, timestep: Any) -> set[str]:
    """Return the paths of all arrays of an outcome, such as `timestep.raw_reward`."""
    paths = jax.tree_util.tree_leaves_with_path({"state": state, "timestep": timestep})
    return {jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths}


def _is_pair(outcome: Any) -> bool:
    """Return whether a function returned `(state, TimeStep)`."""
    return isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[1], TimeStep)


def _check_outcome(where: str, env: Env, outcome: Any) -> Iterator[str]:
    """Yield problems of the shapes and dtypes that the function `where` returned."""
    if not _is_pair(outcome):
        found = "no tuple"
        if isinstance(outcome, tuple):
            number = len(outcome)
            found = f"{number} values" if number != 2 else f"(state, {type(outcome[1]).__name__})"
        yield f"{where} must return (state, jaxrl.TimeStep), got {found}"
        return
    timestep = outcome[1]
    parts = _parts(env.observation_space, timestep.obs)
    if parts is None:
        yield f"{where}: obs must have the parts of {env.observation_space}"
    leaves = [(name, (), bool, getattr(timestep, name)) for name in FLAGS]
    leaves += [("reward", (), np.float32, timestep.reward)]
    leaves += [(name, space.shape, space.dtype, obs) for name, space, obs in parts or []]
    for name, shape, dtype, found in leaves:
        wanted = jax.ShapeDtypeStruct((env.num_envs, *shape), np.dtype(dtype))
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            yield f"{where}: {name} must be {_describe(wanted)}, is {_describe(found)}"


def _check_steps(env: Env, num_steps: int, seed: int) -> Iterator[str]:
    """Yield problems of some steps of random actions."""
    actions = random_actions(env, seed, num_steps)
    try:
        steps = _play_and_close(env, seed, actions)
    except jax.errors.JaxRuntimeError as error:
        yield message_in(error) or str(error)
        return
    ended = steps.terminated | steps.truncated
    if not ended.any():
        warnings.warn(
            f"{env.id}: no episode ended within {num_steps} steps of random actions, so no end was "
            "checked; give a larger num_steps",
            stacklevel=3,
        )
    if not steps.first[0].all() or ended[0].any() or steps.reward[0].any():
        yield "init must set `first`, and neither `terminated`, `truncated` nor a reward"
    if (steps.terminated & steps.truncated).any():
        yield "`terminated` and `truncated` are both set; one of the two ends an episode"
    if (ended[:-1] & ~steps.first[1:]).any():
        yield "the step after an end must begin the next episode: its `first` is not set"
    if (~ended[:-1] & steps.first[1:]).any():
        yield "`first` is set although the step before ended no episode"
    begins = steps.first[1:]
    if (begins & (steps.reward[1:] != 0)).any():
        yield "the step that begins an episode must pay reward 0: its action is discarded"
    if (begins & ended[1:]).any():
        yield "the step that begins an episode must not end it"
    if not np.isfinite(steps.reward).all():
        yield "a reward is not finite"
    for name, space, obs in _parts(env.observation_space, steps.obs) or []:
        low, high = space.bounds()
        if not np.isfinite(obs.astype(np.float32)).all():
            yield f"{name} is not finite"
        elif (obs < low).any() or (obs > high).any():
            found = f"{obs.min():g} to {obs.max():g}"
            yield f"{name} must be within {space.low} to {space.high} as its space says, is {found}"
    again = _play_and_close(env, seed, actions)
    if not _is_close(steps, again):
        yield (
            "a second run with the same key differs: all randomness must come from the key (in a "
            "gymnasium.Env from self.np_random, which reset(seed=...) seeds)"
        )
    if env.checkpointable:
        keys = jax.random.split(jax.random.key(seed), 2)
        lanes = jax.vmap(lambda key: jit_play(env, key, actions))(keys)
        alone = [jit_play(env, key, actions) for key in keys]
        if not all(_is_close(jax.tree.map(lambda x, i=i: x[i], lanes), alone[i]) for i in range(2)):
            yield "a member under vmap differs from the same environments alone"


def _doubts(env: Env) -> Iterator[str]:
    """Yield what the contract allows, but is often a mistake."""
    for name, space, _ in _parts(env.observation_space, zeros(env.observation_space)) or []:
        shape, is_mask = space.shape, ACTION_MASK in name
        if len(shape) == 3 and shape[0] < min(shape[1:]) and not is_mask:
            yield (
                f"{name} has the shape {shape}, which is read as height, width and channels; if "
                "its channels come first, move them to the end"
            )
    if isinstance(env.action_space, Box):
        bounds = np.stack(env.action_space.bounds())
        low, high = bounds[:, np.isfinite(bounds).all(0)]
        half, center = (high - low) / 2, (high + low) / 2
        far = (half > FAR) | (half < 1 / FAR) | (np.abs(center) > FAR)
        if far.any():
            yield (
                f"actions are a Box with bounds {low[far][0]:g} and {high[far][0]:g}, but policies "
                "begin with actions about 0, of standard deviation 1: scale them to -1 and 1 "
                "(gymnasium.wrappers.RescaleAction), or set initial_std"
            )


def _play(env: Env, key: Array, actions: Any) -> tuple[PyTree, TimeStep]:
    """Return the last state, and the time steps that `jit_play` returns."""
    init_key, step_key = jax.random.split(key)
    state, start = env.init(init_key)

    def step(carry: PyTree, row: tuple[Array, Array]) -> tuple[PyTree, TimeStep]:
        (state, mask), (key, action) = carry, row
        if mask is not None:
            action = next_allowed(env.action_space, action, mask)
        state, timestep = env.step(key, state, action)
        return (state, mask_of(timestep)), timestep

    def mask_of(timestep: TimeStep) -> Array | None:
        is_masked = has_action_mask(env.observation_space, env.action_space)
        return timestep.obs[ACTION_MASK] if is_masked else None

    keys = jax.random.split(step_key, len(actions))
    (state, _), steps = jax.lax.scan(step, (state, mask_of(start)), (keys, actions))
    return state, jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), start, steps)


_jit_play = jax.jit(_play, static_argnums=0)


def jit_play(env: Env, key: Array, actions: Any) -> TimeStep:
    """Return the time steps of N environments under actions `[T, N, ...]`.

    The next allowed action replaces one that an action mask forbids.

    Leaves are `[T + 1, N, ...]`; the first time step is that of `init`.
    """
    return _jit_play(env, key, actions)[1]


def _play_and_close(env: Env, seed: int, actions: Any) -> TimeStep:
    """Return what `jit_play` returns, as NumPy's arrays, and close the simulators it made."""
    state, steps = _jit_play(env, jax.random.key(seed), actions)
    with callback.closing(state):
        return jax.tree.map(np.asarray, steps)


def random_actions(env: Env, seed: int, *lead: int) -> np.ndarray:
    """Draw actions `[*lead, N, ...]` uniformly from the action space."""
    space, generator = env.action_space, np.random.default_rng(seed)
    shape = (*lead, env.num_envs, *space.shape)
    if isinstance(space, Box):
        low, high = np.clip(space.bounds(), -1e3, 1e3)
        return generator.uniform(low, high, shape).astype(space.dtype)
    sizes = np.array(space.sizes if isinstance(space, MultiDiscrete) else space.n)
    return generator.integers(0, sizes, shape, np.int32)


def _parts(space: Space, obs: PyTree, name: str = "obs") -> list[tuple[str, Box, Any]] | None:
    """Return names, spaces and arrays of an observation's parts; None if they do not match."""
    if isinstance(space, Box):
        return None if isinstance(obs, dict) else [(name, space, obs)]
    if not isinstance(space, Dict) or not isinstance(obs, dict):
        return None
    if set(obs) != {part for part, _ in space.parts}:
        return None
    found = [_parts(part, obs[key], f"{name}[{key!r}]") for key, part in space.parts]
    return None if None in found else [leaf for leaves in found for leaf in leaves or []]


def _is_close(a: PyTree, b: PyTree) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-4, equal_nan=True) for x, y in pairs)


def _describe(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
