"""Arithmetic on the values of all threads, as Python and NumPy do it on one thread's.

An array of int64 has Python's own integers, which take the type of what they meet; other arrays have NumPy's numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from charcnn.aliases import Value
from charcnn.gpu.emulator.lockstep.code import Unsupported

_Mask = np.ndarray | None
_BOOL = np.dtype(bool)


def truth(value: Value) -> Value:
    """Whether the value counts as true, in each thread."""
    return value if not isinstance(value, np.ndarray) or value.dtype == bool else value != 0


def alike(a: Value, b: Value, mask: _Mask) -> tuple[Value, Value]:
    """Two operands, of which one at least is an array, so that NumPy's result has the type of one thread's."""
    kind_a, kind_b = getattr(a, "dtype", None), getattr(b, "dtype", None)
    if kind_a is kind_b and kind_a != _BOOL:
        return a, b
    if kind_a == _BOOL:
        a, kind_a = (a.astype(np.int64), np.dtype(np.int64)) if isinstance(a, np.ndarray) else (int(a), None)
    if kind_b == _BOOL:
        b, kind_b = (b.astype(np.int64), np.dtype(np.int64)) if isinstance(b, np.ndarray) else (int(b), None)
    if kind_a == np.int64 and kind_b is not None and kind_b != np.int64:
        return _as(a, kind_b, mask), b
    if kind_b == np.int64 and kind_a is not None and kind_a != np.int64:
        return a, _as(b, kind_a, mask)
    return a, b


def _as(whole: Value, kind: np.dtype, mask: _Mask) -> Value:
    found = whole.astype(kind)
    if kind.kind in "iu":
        wrong = found.astype(np.int64) != whole
        if (wrong if mask is None else wrong & mask).any():
            raise Unsupported("a number beyond its type")
    return found


def joined(mask: np.ndarray, new: Value, old: Value) -> Value:
    """The new value of threads of the mask, the old one of others."""
    if isinstance(new, tuple) and isinstance(old, tuple) and len(new) == len(old):
        parts = [joined(mask, one, other) for one, other in zip(new, old, strict=True)]
        return type(new)(*parts) if hasattr(new, "_fields") else tuple(parts)
    if new is old or (type(new) is type(old) and isinstance(new, (int, float, np.generic)) and new == old):
        return new
    if not all(isinstance(one, (np.ndarray, int, float, np.generic)) for one in (new, old)):
        raise Unsupported("threads hold different things")
    if any(getattr(one, "dtype", None) not in (None, _BOOL) for one in (new, old)):
        new, old = alike(new, old, _NOBODY)
    return np.where(mask, new, old)


_NOBODY = np.zeros(1, bool)
"""Whose numbers must fit: of joined values each thread has but one."""


def _times(a: Value, b: Value, mask: _Mask) -> Value:
    found = a * b
    if getattr(found, "dtype", None) == np.int64:
        sizes = [max(abs(int(np.max(one))), abs(int(np.min(one)))) for one in (a, b)]
        if sizes[0] * sizes[1] >= 1 << 63:
            raise Unsupported("a number beyond 64 bits")
    return found


def _shifted(a: Value, b: Value, mask: _Mask) -> Value:
    found = a << b
    if found.dtype == np.int64:
        wrong = found >> b != a
        if (wrong if mask is None else wrong & mask).any():
            raise Unsupported("a number beyond 64 bits")
    return found


def _divided(how: Callable[[Value, Value], Value]) -> Callable[[Value, Value, _Mask], Value]:
    def divide(a: Value, b: Value, mask: _Mask) -> Value:
        if isinstance(b, np.ndarray) and b.dtype.kind in "iu":
            zero = b == 0
            if zero.any():
                if (zero if mask is None else zero & mask).any():
                    raise Unsupported("a division by zero")
                b = np.where(zero, b.dtype.type(1), b)
        elif not isinstance(b, np.ndarray) and b == 0:
            raise Unsupported("a division by zero")
        return how(a, b)

    return divide


def _plain(how: Callable[[Value, Value], Value]) -> Callable[[Value, Value, _Mask], Value]:
    return lambda a, b, mask: how(a, b)


OPERATORS: dict[str, Callable[[Value, Value, _Mask], Value]] = {
    "mul": _times,
    "lshift": _shifted,
    "floordiv": _divided(operator.floordiv),
    "mod": _divided(operator.mod),
    **{
        name: _plain(getattr(operator, name))
        for name in ("add", "sub", "truediv", "and_", "or_", "xor", "rshift", "pow")
    },
}
"""By their names in Python's `operator`: of two operands, made alike, and the mask of who runs."""


def least(a: Value, b: Value) -> Value:
    """min(a, b) of each thread."""
    return joined(b < a, b, a)


def greatest(a: Value, b: Value) -> Value:
    """max(a, b) of each thread."""
    return joined(b > a, b, a)
