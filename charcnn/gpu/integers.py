"""Integers of 32 bits that stay so: how `jit` types uint32 arithmetic.

Numba widens: uint32 + uint32 is uint64, for which a GPU takes two registers. While one of charcnn's kernels is
compiled, + - * // % & | ^ << >> of a uint32 and another, or a constant that fits, give a uint32, modulo 2**32, and
comparisons are of 32 bits. All else, and a user's own kernels, are typed by Numba's rules. In the simulator integers
are Python's, which do not wrap: a difference below zero there needs `& 0xFFFFFFFF`.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.cuda import types

from charcnn.aliases import Function, Kernel, NumbaType, Record
from charcnn.gpu.device import SIMULATED

if not SIMULATED:
    from numba.cuda.descriptor import cuda_target
    from numba.cuda.typing import signature
    from numba.cuda.typing.templates import AbstractTemplate

_BITS = 32

ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift")

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

_compiling = threading.local()

_installed = False


def is_uint32(*kinds: Any) -> bool:
    """Whether some of these Numba types are uint32, and all others constants that fit."""
    plain = [kind for kind in kinds if not isinstance(kind, types.IntegerLiteral)]
    constants = (kind.literal_value for kind in kinds if isinstance(kind, types.IntegerLiteral))
    return (
        bool(plain) and all(kind == types.uint32 for kind in plain) and all(0 <= one < 1 << _BITS for one in constants)
    )


def _template(function: Function, result: NumbaType) -> type[AbstractTemplate]:
    class Uint32(AbstractTemplate):  # type: ignore[misc, unused-ignore]
        key = function
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Record) -> Any:
            if getattr(_compiling, "narrow", False) and not kws and is_uint32(*args):
                return signature(result, *[types.uint32] * len(args))
            return None

    return Uint32


def install() -> None:
    """Put our templates before Numba's: the first that fits decides. Once, when the first kernel is compiled."""
    global _installed
    if _installed:
        return
    context = cuda_target.typing_context
    context.refresh()
    for name in ARITHMETIC:
        for key in (name, f"i{name.rstrip('_')}"):
            _insert(context, getattr(operator, key), types.uint32)
    for name in COMPARISONS:
        _insert(context, getattr(operator, name), types.boolean)
    _installed = True


def _insert(context: Any, function: Function, result: NumbaType) -> None:
    known = context._lookup_global(function)
    context._remove_global(function)
    context._insert_global(function, types.Function(_template(function, result)).augment(known))


def narrow(kernel: Kernel) -> None:
    """Let a kernel, and all that it calls, be compiled so."""
    compiled = kernel.compile

    def compile_narrow(sig: Any) -> Any:
        with _narrow():
            return compiled(sig)

    kernel.compile = compile_narrow


@contextmanager
def _narrow() -> Iterator[None]:
    before, _compiling.narrow = getattr(_compiling, "narrow", False), True
    try:
        yield
    finally:
        _compiling.narrow = before
