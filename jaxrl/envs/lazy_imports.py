"""Imports that wait until they are used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands for a module until something asks for one of its attributes."""

    def __init__(self, name: str, spec: ModuleSpec | None, without: tuple[str, ...] = ()):
        super().__init__(name)
        self.__dict__.update({"__spec__": spec, "_without": without})
        if spec is not None and spec.submodule_search_locations is not None:
            self.__dict__["__path__"] = spec.submodule_search_locations

    def __getattr__(self, name: str) -> Any:
        with set_aside(*self.__dict__["_without"]):
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            module = importlib.import_module(self.__name__)
        for child, loaded in _within(self.__name__).items():  # while it waited
            module.__dict__.setdefault(child, loaded)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


@contextmanager
def set_aside(*names: str) -> Generator[None]:
    """Who imports these modules within the block gets them at their first use.

    Modules within a package that waits can be imported. Then it remains, waiting, what its own
    package calls by its name; for `sys.modules` none of them has been imported.
    """
    waiting = {name: _Deferred(name, _find(name)) for name in names if name not in sys.modules}
    for name, module in waiting.items():
        package, _, child = name.rpartition(".")
        if package in waiting:  # `from package import child` asks the package
            waiting[package].__dict__[child] = module
    sys.modules.update(waiting)
    try:
        yield
    finally:
        still = [name for name, module in waiting.items() if sys.modules.get(name) is module]
        entered = [name for name in still if {*_within(name).values()} - {*waiting.values()}]
        for name in still:
            del sys.modules[name]
    for name in entered:
        package, _, child = name.rpartition(".")
        setattr(importlib.import_module(package), child, waiting[name])


def _within(package: str) -> dict[str, ModuleType]:
    """The modules of a package that have been imported, by their names in it."""
    found = {name.rpartition("."): module for name, module in [*sys.modules.items()]}
    return {child: module for (parent, _, child), module in found.items() if parent == package}


def _find(name: str) -> ModuleSpec | None:
    """As `importlib.util.find_spec` does, but without importing the packages around it."""
    package = name.rpartition(".")[0]
    if not package:
        return importlib.util.find_spec(name)
    spec = _find(package)
    return spec and PathFinder.find_spec(name, spec.submodule_search_locations)


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
        sys.modules[name] = _Deferred(name, spec, without)
