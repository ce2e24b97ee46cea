"""Odd values and texts, and the form of a case that tries them."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

NAN_ARRAY = np.array([1.0, math.nan])
HOPELESS: tuple[Any, ...] = (math.nan, object(), 1j, b"x", {}, {"a": 1}, len, NAN_ARRAY)
"""Values that nothing may take."""
ODD: tuple[Any, ...] = (
    *HOPELESS, None, "", "x", "1", "nan", "lstm", "gru", "mlp", -1, 0, 1, 2, 3, 7, 1.5, -0.5, 0.5,
    1e-45, 1e38, math.inf, -math.inf, True, False, (), (0,), (8,), (8, "a"), [], [8], 10**30, 2**31,
    -(2**63), np.float32(0.5), np.int64(4), np.array([1.0, 2.0]), "\0", "é" * 300, "../..",
)  # fmt: skip
TEXTS = (
    "", "x", "nan", "inf", "-1", "0", "1", "2", "1.5", "1e3", "1e400", "None", "True", "(8,)", "[",
    "'", "=", "a=b", "gamma=2", "../..", "é\0", "--", "-x", "99999999999999999999", "Uniform(0, 1)",
    "learning_rate=Uniform(0, 1)", "gamma=Choice((0.9,))", "gamma=Choice(1)", "num_envs=3",
    "learning_rate=LogUniform(0, 1)", "gamma=__import__('os')", "num_steps=Integer(1, 10**9)",
    "gamma=Uniform(*[1])", "num_epochs=QLogUniform(1, 8, rungs=0)", "gamma=" + "(" * 300,
    "sqlite:///x/y/z.db", "postgresql://u:secret@127.0.0.1:1/x", "journal:///", "mysql://x",
)  # fmt: skip
IDS = (
    "CartPole-v1", "Breakout-MinAtar", "Pong-v5", "envpool/Pong-v5", "gymnasium/CartPole-v1",
    "gymnasium/ALE/Pong-v5", "probe/Recall-v0", "gymnax/Acrobot-v1", "gymnasium/json:dumps",
    "gymnasium/no.module:make", "gymnasium/bad_simulators:make", "maze/Maze-v0",
)  # fmt: skip
OPTIONS = (
    "num_pools", "asynchronous", "send_ahead", "timeout", "vectorization_mode", "limit", "how",
    "max_episode_steps", "episodic_life", "frame_stack", "render_mode", "num_threads", "unheard_of",
)  # fmt: skip


class Case(NamedTuple):
    """An input."""

    what: str
    words: tuple[str, ...]
    """An error must have one of them."""
    function: Callable[[], Any]
    is_bad: bool = False
    """It must not be taken."""


def odd(rng: random.Random, names: Any, most: int) -> dict[str, Any]:
    """Return odd values for some names."""
    names = sorted(names)
    return {name: rng.choice(ODD) for name in rng.sample(names, rng.randint(1, most))}


def is_hopeless(values: dict[Any, Any]) -> bool:
    return any(value is bad for value in values.values() for bad in HOPELESS)


def is_small(values: dict[str, Any]) -> bool:
    """Return whether no value makes for a long run."""
    numbers = [float(x) for x in values.values() if isinstance(x, int | float)]
    return all(abs(x) < 100 for x in numbers)


def key() -> Any:
    import jax

    return jax.random.key(0)


def names(text: str, word: str) -> bool:
    """Return whether an error's text has a word, as it is or escaped."""
    return word in text or word in plain(text) or repr(word)[1:-1] in text


def plain(text: str) -> str:
    """Return a text with flags as fields, and without empty parts of paths."""
    return re.sub("/+", "/", text.replace("-", "_"))
