"""Imports that wait until they are used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands in `sys.modules` for a module until something asks for one of its attributes."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


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
