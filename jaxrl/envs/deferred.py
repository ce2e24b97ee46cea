"""Imports that wait until they are used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands in `sys.modules` for a module until something asks for one of its attributes."""

    def __getattr__(self, attribute: str) -> Any:
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        module = importlib.import_module(name)
        self.__dict__.update(module.__dict__)
        return getattr(module, attribute)


def defer_import(name: str) -> None:
    """Let `import name` succeed at once and load the module at its first use.

    Nothing happens if the module is loaded already or is not installed.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is not None:
        module = _Deferred(name)
        module.__spec__ = spec
        sys.modules[name] = module
