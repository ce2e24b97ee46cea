"""The code of worker processes, each of which runs one environment.

The trainer (`jaxrl.envs.host.worker_processes`) sends commands over a socket, and the worker
answers each of them. Actions, observations, rewards and flags are in shared memory. An error is
sent as text.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np

from jaxrl.envs.host import step_checks
from jaxrl.envs.host.errors import describe, shorten

COMMAND = struct.Struct("<cq")
"""A message to the worker: what to do, and the seed of a reset (`NO_SEED` for none)."""
RESET, STEP, RENDER, CLOSE = b"r", b"s", b"d", b"c"
CALLS = {RESET: "reset", STEP: "step", RENDER: "render", CLOSE: "close"}
"""The methods of the environment that the worker calls."""
NO_SEED = -1
ANSWER = struct.Struct("<cQ")
"""The head of a message from the worker: what happened, and the length of what follows."""
DONE, FAILED, CLOSED = b".", b"!", b"c"
PICTURE = struct.Struct("<II")
"""The head of a picture: height and width."""


class Spaces(NamedTuple):
    """The spaces of an environment, and its frames a second."""

    observation: gymnasium.Space
    action: gymnasium.Space
    render_fps: float


class Arrays(NamedTuple):
    """The shared memory of N environments, as arrays `[N, ...]`."""

    obs: Any  # of the form of the observation space
    action: np.ndarray
    reward: np.ndarray  # float64
    terminated: np.ndarray  # bool
    truncated: np.ndarray  # bool


# --- the loop of a worker -------------------------------------------------------------------------


def work(channel: socket.socket, slot: int, make: bytes, memory: Any) -> None:
    """Make an environment and do what the trainer commands, until the connection closes.

    Args:
      slot: the number of the environment.
      make: the trainer's environment variables and, pickled again, the function that makes the
        environment, and the `Spaces` that it must have, or None for those it has, which are sent to
        the trainer.
      memory: `memory.arrays(spaces)` are the `Arrays`; None without shared memory.
    """
    env: Any = None
    arrays: Any = None

    def begin() -> bytes:
        nonlocal env, arrays
        variables, made_of = pickle.loads(make)
        os.environ.clear()
        os.environ.update(variables)
        make_env, expected = pickle.loads(made_of)
        env = step_checks.checked(make_env())
        spaces = read_spaces(env)
        if expected is None:
            return cloudpickle.dumps(spaces)
        for name, one, other in zip(("observation", "action"), expected, spaces, strict=False):
            if one != other:
                raise ValueError(f"the {name} space is {other} now; it was {one} when first made")
        arrays = memory.arrays(expected)
        return b""

    with contextlib.suppress(ConnectionError):  # the trainer was killed
        is_made = _answer(channel, "make", begin)
        while is_made and len(command := channel.recv(COMMAND.size, socket.MSG_WAITALL)):
            name, seed = COMMAND.unpack(command)
            if name == CLOSE:
                _answer(channel, "close", lambda: env.close())
                channel.sendall(ANSWER.pack(CLOSED, 0))
                return
            if name == RENDER:
                _answer(channel, "render", lambda: _picture(env.render()))
            elif name == RESET:
                _answer(channel, "reset", lambda seed=seed: _reset(env, seed, slot, arrays))
            else:
                _answer(channel, "step", lambda: _step(env, slot, arrays))


def _answer(channel: socket.socket, name: str, call: Callable[[], bytes | None]) -> bool:
    """Call a function and send its result, or its error with `name`; return True for a result."""
    try:
        kind, content = DONE, call() or b""
    except BaseException as error:  # a simulator may raise anything, such as SystemExit
        report = (name, *classify(error), describe(error))
        kind, content = FAILED, json.dumps(report).encode()
    channel.sendall(ANSWER.pack(kind, len(content)) + content)
    return kind == DONE


def _reset(env: gymnasium.Env, seed: int, slot: int, arrays: Arrays) -> None:
    if seed != NO_SEED:
        # Some simulators draw from these generators, whose states all forked workers share.
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
    obs, _ = env.reset(seed=None if seed == NO_SEED else seed)
    _write(arrays.obs, slot, obs)
    arrays.reward[slot] = 0
    arrays.terminated[slot] = arrays.truncated[slot] = False


def _step(env: gymnasium.Env, slot: int, arrays: Arrays) -> None:
    action = arrays.action[slot]
    # A row of an array is a view, which the trainer will change.
    obs, reward, terminated, truncated, _ = env.step(action.copy())
    _write(arrays.obs, slot, obs)
    arrays.reward[slot] = reward
    arrays.terminated[slot], arrays.truncated[slot] = terminated, truncated


def _write(arrays: Any, slot: int, obs: Any) -> None:
    if isinstance(arrays, dict):
        for name, part in arrays.items():
            _write(part, slot, obs[name])
    elif isinstance(arrays, tuple):
        for part, value in zip(arrays, obs, strict=True):
            _write(part, slot, value)
    else:
        arrays[slot] = obs


def _picture(picture: Any) -> bytes:
    """Return a picture as bytes; none if the environment draws nothing."""
    if picture is None:
        return b""
    picture = np.asarray(picture)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ValueError(
            f"render must return uint8 [height, width, 3], got {picture.dtype}{list(picture.shape)}"
        )
    return PICTURE.pack(*picture.shape[:2]) + picture.tobytes()


# --- errors as text -------------------------------------------------------------------------------

MISSING, REFUSED, OTHER = "missing", "refused", "other"


def classify(error: BaseException) -> tuple[str, str]:
    """Return what kind of error it is, and a summary in one line or few."""
    try:
        if isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):
            return MISSING, shorten(str(error))
        if isinstance(error, TypeError | ValueError | AssertionError | gymnasium.error.Error):
            return REFUSED, shorten(str(error))
        return OTHER, shorten(f"{type(error).__name__}: {error}")
    except BaseException:  # of its __str__
        return OTHER, type(error).__name__


# --- spaces ---------------------------------------------------------------------------------------


def read_spaces(env: Any, prefix: str = "") -> Spaces:
    """Return the spaces of an environment.

    Args:
      prefix: of the attributes' names; "single_" for a vector environment.

    Raises:
      TypeError: for what is no space.
    """
    names = (f"{prefix}observation_space", f"{prefix}action_space")
    for name in names:
        space = getattr(env, name, None)
        if not isinstance(space, gymnasium.Space):
            raise TypeError(f"{name} must be a gymnasium.Space, is {space!r:.200}")
    fps = (env.metadata or {}).get("render_fps")
    is_rate = isinstance(fps, int | float) and 0 < fps < np.inf
    observation, action = (getattr(env, name) for name in names)
    return Spaces(observation, action, float(fps) if is_rate else 30.0)
