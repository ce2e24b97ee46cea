"""Imports that wait until they are used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands for a module until something asks for one of its attributes."""

    def __init__(self, name: str, without: tuple[str, ...] = ()):
        super().__init__(name)
        self.__dict__["_without"] = without

    def __getattr__(self, name: str) -> Any:
        with set_aside(*self.__dict__["_without"]):
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            module = importlib.import_module(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


@contextmanager
def set_aside(*names: str) -> Generator[None]:
    """Who imports these modules within the block gets them at their first use."""
    waiting = {name: _Deferred(name) for name in names if name not in sys.modules}
    for name, module in waiting.items():
        package, _, child = name.rpartition(".")
        if package in waiting:  # `from package import child` asks the package for both
            spec = importlib.util.find_spec(package)
            path = None if spec is None else spec.submodule_search_locations
            waiting[package].__dict__.update({"__path__": path, child: module})
    sys.modules.update(waiting)
    try:
        yield
    finally:
        for name, module in waiting.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def defer_import(name: str, without: tuple[str, ...] = ()) -> None:
    """Let `import name` succeed at once and load the module at its first use.

    Nothing happens if the module is loaded already or is not installed.

    Args:
      without: modules that it imports and hardly ever uses, which are set aside meanwhile.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is not None:
        module = _Deferred(name, without)
        module.__spec__ = spec
        sys.modules[name] = module
