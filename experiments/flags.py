"""Types of flags that several scripts have."""

from __future__ import annotations

import contextlib
from typing import Annotated

from tyro.constructors import PrimitiveConstructorSpec


def whole(text: str) -> int:
    """A whole number, also as people write large ones: `10_000_000` or `1e7`."""
    for kind in (int, float):
        with contextlib.suppress(ValueError, OverflowError):
            if (number := kind(text)) == int(number):
                return int(number)
    raise ValueError(f"{text!r} is no whole number")


Whole = Annotated[
    int,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole(words[0]),
        is_instance=lambda value: type(value) is int,
        str_from_instance=lambda value: [str(value)],
    ),
]
