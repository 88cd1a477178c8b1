"""Lets an engine start without its package of GPU kernels. Python loads this file when it starts, if it is on the path.

The package can be imported, but nothing in it can be called: an engine that gets by without it does so by its own code.
"""

from __future__ import annotations

import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

KERNELS = "sgl_kernel"


class NoKernel:
    """Something in a package that is not there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> NoKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return NoKernel(f"{self._name}.{name}")

    def __call__(self, *_: object, **__: object) -> Any:
        raise NotImplementedError(f"{self._name} is not installed")


class NoKernels(types.ModuleType):
    """A module of a package that is not there."""

    __path__ = []  # noqa: RUF012 - what makes a module a package
    __version__ = "0"

    def __getattr__(self, name: str) -> NoKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return NoKernel(f"{self.__name__}.{name}")


class Finder(MetaPathFinder, Loader):
    """Finds modules of the package that is not there."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".", maxsplit=1)[0] == KERNELS else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return NoKernels(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.append(Finder())  # the last one asked
