"""The code that an environment's id and options name.

`jaxrl.make` imports what its caller names. Whoever takes an id from a file, such as the manifest of
a run directory, asks here first, because the file may be a stranger's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

DEEPMIND_LAB = "gymnasium/jaxrl.envs.external_simulators:deepmind_lab"
OWN_FUNCTIONS = (
    DEEPMIND_LAB,
    "gymnasium/jaxrl.envs.external_simulators:habitat",
    "gymnasium/jaxrl.envs.external_simulators:house3d",
)
"""The ids that name a function of jaxrl."""
NAMING_IDS = ("GymV21Environment-v0", "GymV26Environment-v0", "DmLabCompatibility-v0")
"""Ids of Gymnasium, registered by shimmy, whose option `env_id` names a module or a Lua script."""
ENVPOOL_OPTIONS = (
    "base_path", "vzd_path", "cfg_path", "wad_path", "iwad_path", "game_args", "lmp_save_dir"
)  # fmt: skip
"""Options of envpool: the directory of its simulators' files, and of ViZDoom the program that it
starts, its arguments, files that have either or scripts, and a directory that it writes."""
_INSTALLED_LEVEL = re.compile(r"\w+(/\w+)*")


def code_named_by(id: str, options: Mapping[str, Any]) -> str | None:
    """Return the code, besides installed simulators, that making an environment would run.

    Args:
      id: as `jaxrl.make` takes it.
      options: of the backend.

    Returns:
      The end of a sentence, such as "imports the module 'x'"; None if there is no such code.
    """
    if ":" in id and id not in OWN_FUNCTIONS:
        module = id.removeprefix("gymnasium/").partition(":")[0]
        if module == "__main__":
            return "is a function of the script that trained, which only that script can import"
        return f"imports the module {module!r}"
    if id.rpartition("/")[2] in NAMING_IDS:
        return f"runs what its option env_id names, {options.get('env_id')!r}"
    if found := {name: options[name] for name in ENVPOOL_OPTIONS if name in options}:
        return f"runs programs or scripts that its options name, {found}"
    level = str(options.get("level", "installed"))
    if id == DEEPMIND_LAB and not _INSTALLED_LEVEL.fullmatch(level):
        return f"runs the script that its option level names, {level!r}"
    return None
