"""Integers of 32 bits that stay so: how `jit` types uint32 arithmetic.

Numba widens: uint32 + uint32 is uint64, for which a GPU takes two registers. While one of charcnn's kernels is
compiled, + - * // % & | ^ << >> of a uint32 and another, or a constant that fits, give a uint32, modulo 2**32,
comparisons are of 32 bits, and a range of uint32 and such constants counts in uint32. All else, and a user's own
kernels, are typed by Numba's rules. In the simulator integers are Python's, which do not wrap: a difference below zero
there needs `& 0xFFFFFFFF`.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.cuda import types

from charcnn.aliases import Builder, Function, Kernel, NumbaType, Record
from charcnn.gpu.device import SIMULATED

if not SIMULATED:
    from numba.cuda import cgutils
    from numba.cuda.core.imputils import RefType, Registry, iternext_impl
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
    return any(kind == types.uint32 for kind in kinds) and all(map(_fits, kinds))


def _template(function: Function, result: Any) -> type[AbstractTemplate]:
    class Uint32(AbstractTemplate):  # type: ignore[misc, unused-ignore]
        key = function
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Record) -> Any:
            if getattr(_compiling, "narrow", False) and not kws and is_uint32(*args):
                return signature(result, *[types.uint32] * len(args))
            return None

    return Uint32


def _template_of_range() -> type[AbstractTemplate]:
    class Range(AbstractTemplate):  # type: ignore[misc, unused-ignore]
        key = range
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Record) -> Any:
            if not getattr(_compiling, "narrow", False) or kws or not all(map(_fits, args)):
                return None
            if len(args) == 3 and getattr(args[2], "literal_value", 1) == 0:
                return None
            return signature(types.RangeType(types.uint32), *[types.uint32] * len(args))

    return Range


def _fits(kind: NumbaType) -> bool:
    return bool(kind == types.uint32) or (
        isinstance(kind, types.IntegerLiteral)
        and not isinstance(kind, types.Boolean)
        and 0 <= kind.literal_value < 1 << _BITS
    )


def _counters() -> Registry:
    """How a range of uint32 counts: Numba has those of int32, int64 and uint64."""
    registry = Registry("charcnn.integers")
    state_type = types.RangeType(types.uint32)
    iterator_type = state_type.iterator_type
    State, Iterator = map(cgutils.create_struct_proxy, (state_type, iterator_type))

    def start_stop_step(context: Any, builder: Builder, sig: Any, args: Any) -> Any:
        state = State(context, builder)
        zero, one = (context.get_constant(types.uint32, value) for value in (0, 1))
        state.start, state.stop, state.step = {1: (zero, *args, one), 2: (*args, one)}.get(len(args), args)
        return state._getvalue()

    def begin(context: Any, builder: Builder, sig: Any, args: Any) -> Any:
        state, found = State(context, builder, args[0]), Iterator(context, builder)
        zero, one = (context.get_constant(types.uint32, value) for value in (0, 1))
        some = builder.icmp_unsigned("<", state.start, state.stop)
        beyond = builder.udiv(builder.sub(builder.sub(state.stop, state.start), one), state.step)
        found.iter, found.count = (cgutils.alloca_once(builder, state.start.type) for _ in range(2))
        builder.store(state.start, found.iter)
        builder.store(builder.select(some, builder.add(beyond, one), zero), found.count)
        found.stop, found.step = state.stop, state.step
        return found._getvalue()

    @iternext_impl(RefType.BORROWED)
    def advance(context: Any, builder: Builder, sig: Any, args: Any, result: Any) -> None:
        at = Iterator(context, builder, args[0])
        zero, one = (context.get_constant(types.uint32, value) for value in (0, 1))
        left = builder.load(at.count)
        more = builder.icmp_unsigned("!=", left, zero)
        result.set_valid(more)
        with builder.if_then(more):
            value = builder.load(at.iter)
            result.yield_(value)
            builder.store(builder.sub(left, one, flags=["nuw"]), at.count)
            builder.store(builder.add(value, at.step, flags=["nuw"]), at.iter)

    for count in (1, 2, 3):
        registry.lower(range, *[types.uint32] * count)(start_stop_step)
    registry.lower("getiter", state_type)(begin)
    registry.lower("iternext", iterator_type)(advance)
    return registry


def install() -> None:
    """Put our templates before Numba's: the first that fits decides. Once, when the first kernel is compiled."""
    global _installed
    if _installed:
        return
    context = cuda_target.typing_context
    context.refresh()
    for name in ARITHMETIC:
        for key in (name, f"i{name.rstrip('_')}"):
            _insert(context, _template(getattr(operator, key), types.uint32))
    for name in COMPARISONS:
        _insert(context, _template(getattr(operator, name), types.boolean))
    _insert(context, _template_of_range())
    cuda_target.target_context.install_registry(_counters())
    _installed = True


def _insert(context: Any, template: type[AbstractTemplate]) -> None:
    known = context._lookup_global(template.key)
    context._remove_global(template.key)
    context._insert_global(template.key, types.Function(template).augment(known))


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
