"""Compare settings as JSON holds them: one line for each that is not as it was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def changed_settings(old: dict[str, Any], new: dict[str, Any], names: Iterable[str]) -> list[str]:
    """Return a line for each of the named settings, or entry of one, that is not as it was."""
    lines = []
    for key in names:
        a, b = (json.loads(json.dumps(settings.get(key))) for settings in (old, new))
        if isinstance(a, dict) and isinstance(b, dict):
            lines += [
                f"{key}.{name}: {a.get(name)!r} -> {b.get(name)!r}"
                for name in sorted({*a, *b})
                if a.get(name) != b.get(name)
            ]
        elif a != b:
            lines.append(f"{key}: {a!r} -> {b!r}")
    return lines
