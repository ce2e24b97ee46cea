"""Records: the JSON files that keep the results of finished runs and studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def save_record(directory: Path, name: str, record: dict[str, Any]) -> Path:
    """Write `name.json` and return the path of the picture that belongs beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return directory / f"{name}.png"
