"""The modules of this room that import PyTorch, which is optional: imported where they are asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from charcnn.aliases import Argument
from charcnn.host.install import pip_install


def module(name: str, asked: str) -> Argument:
    """A module of this room that imports PyTorch.

    Args:
        name: the module's.
        asked: what an error says that needs it.

    Raises:
        ValueError: PyTorch is missing.
    """
    if not find_spec("torch"):
        raise ValueError(f"{asked}: needs PyTorch: {pip_install('torch')}")
    return import_module(f"charcnn.training.{name}")
