"""What a kernel is compiled of, as a digest: its source and that of all it calls, what they close over, its types.

Comments, docstrings and places in a file leave it as it was. Two kernels of one digest are the same machine code, where
the same `compilers` made it.
"""

from __future__ import annotations

import ast
import enum
import functools
import hashlib
import inspect
import numbers
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.cuda import types
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.extending import _Intrinsic

from charcnn.gpu import integers

OTHERS = sys.stdlib_module_names | {"llvmlite", "numba", "numpy"}
"""Packages whose source is not looked into: they are known by their names, and by `compilers`."""


def compilers() -> dict[str, str]:
    """The versions of what compiles, Python's, too, as its own compiler comes first; and what types integers."""
    wheels = ("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    rules = short(Path(integers.__file__).read_text(encoding="utf-8"))
    return {"python": python, "integers": rules, **{name: version(name) for name in wheels}}


def digest(kernel: CUDADispatcher, kinds: tuple[Any, ...]) -> str:
    """Of a kernel for arguments of these types.

    Raises:
        TypeError: it refers to something whose source is not known.
    """
    return short(f"{_described(kernel)} {kinds}")


def short(text: str) -> str:
    """A digest of 16 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_found: dict[int, tuple[Any, str]] = {}
"""What was described, by its identity: the object, which is so kept alive, and its digest, empty until it is known."""


def _described(value: Any) -> str:
    if value is None or isinstance(value, (bool, str, bytes, numbers.Number, enum.Enum, np.dtype, types.Type)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({' '.join(map(_described, value))})"
    if isinstance(value, (dict, set, frozenset)):
        pairs = value.items() if isinstance(value, dict) else value
        return f"{type(value).__name__}({' '.join(sorted(map(_described, pairs)))})"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if id(value) not in _found:
        _found[id(value)] = value, ""  # for those that refer to themselves
        _found[id(value)] = value, short(" ".join(_parts(value)))
    return _found[id(value)][1]


def _parts(value: Any) -> Iterator[str]:
    """What an object of other kinds is made of."""
    if isinstance(value, CUDADispatcher):
        yield from ("compiled", _described(value.targetoptions), _described(value.py_func))
    elif isinstance(value, _Intrinsic):
        yield from ("intrinsic", _described(value._defn))
    elif isinstance(value, functools.partial):
        yield from ("partial", *map(_described, (value.func, value.args, value.keywords)))
    elif isinstance(value, FunctionType) and _is_own(value):
        yield from _parts_of_function(value)
    elif hasattr(value, "__wrapped__"):
        yield from ("wrapped", _described(value.__wrapped__))
    elif isinstance(value, type) and _is_own(value):
        yield _source(value)
        members = (member for member in vars(value).values() if isinstance(member, FunctionType))
        written = (member for member in members if member.__code__.co_filename == inspect.getsourcefile(value))
        yield from map(_described, (*value.__bases__, *written))
    elif _is_own(type(value)):
        state = {name: getattr(value, name) for name in getattr(value, "__slots__", ())} or vars(value)
        yield from (_described(type(value)), _described(state))
    elif name := getattr(value, "__qualname__", None) or getattr(value, "__name__", None):
        yield f"{getattr(value, '__module__', '')}.{name}"
    else:
        raise TypeError(f"{value!r}: no digest of its source can be had")


def _is_own(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] not in OTHERS


def _parts_of_function(function: FunctionType) -> Iterator[str]:
    yield _source(function)
    names = set(_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield f"{name}={_described(value)}"
        if isinstance(value, ModuleType) and value.__name__.split(".")[0] not in OTHERS:
            yield from (f"{name}.{one}={_described(getattr(value, one))}" for one in sorted(names & vars(value).keys()))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # nothing was put there
            yield f"{name}={_described(cell.cell_contents)}"
    yield _described([function.__defaults__, function.__kwdefaults__])


def _names(code: CodeType) -> Iterator[str]:
    """Of globals and attributes, also in functions within."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _source(value: Any) -> str:
    """Source text, less comments, docstrings and layout."""
    text = textwrap.dedent(inspect.getsource(value))
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a lambda on its line
        return text
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
