"""What stands for numba.cuda where numba-cuda is not installed, so that all that runs on a CPU imports and runs.

Modules that have operators for both import numba.cuda. Here each name in it is a stand-in: a decorator takes a kernel
while a module is imported, and any use afterwards is a DeviceError that says what to install. Numba has a numba.cuda
of its own, which lacks what kernels here need, and which Numba will remove; a program that wants it imports it first.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

from charcnn.gpu.backend import MISSING
from charcnn.gpu.errors import DeviceError
from charcnn.host.install import pip_install


def refuse() -> NoReturn:
    """Raise the DeviceError that says what to install."""
    raise DeviceError(f"kernels for GPUs, also simulated ones, need numba-cuda: {pip_install('simulator')}")


def _importing() -> bool:
    """Whether a module's own lines run, to define what it holds."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and getattr(frame.f_globals.get("__spec__"), "_initializing", False):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class _Absent:
    """Any name of numba.cuda: a function, a class, a decorator, or the kernel that a decorator gave."""

    def __init__(self, *_: object) -> None: ...  # with three arguments it is a class whose base is absent

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent()

    def __call__(self, *_: object, **__: object) -> _Absent:
        return self if _importing() else refuse()

    def __getitem__(self, _: object) -> _Absent:
        return self if _importing() else refuse()

    def __instancecheck__(self, _: object) -> bool:
        return False


def _attribute(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return (lambda *_: False) if name.startswith("is_") else _Absent()


class _Finder:
    """Finds numba.cuda and all modules in it, as modules that hold whatever is asked of them."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        """Python's import calls this: None for all other modules."""
        return ModuleSpec(name, self, is_package=True) if f"{name}.".startswith("numba.cuda.") else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Python's import calls this."""
        module = ModuleType(spec.name)
        module.__getattr__ = _attribute  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Python's import calls this: there is nothing to run."""


def install() -> None:
    """Have the stand-ins found where numba-cuda is missing and no numba.cuda was imported before."""
    if MISSING and "numba.cuda" not in sys.modules:
        sys.meta_path.insert(0, _Finder())
