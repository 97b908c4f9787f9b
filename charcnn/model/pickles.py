"""What is looked for in a pickle before anything unpickles it.

A dict's keys are hashed, and a tuple's hash visits all that it holds: once for each place where it stands. So tuples
that hold the one before them twice, 60 deep, are a few hundred bytes that take years, in C, where no Ctrl-C is heard;
and tuples 100,000 deep overflow the stack. Neither is built here: opcodes are read, and sizes counted.
"""

from __future__ import annotations

import pickletools
from typing import Any

MOST_VALUES = 1 << 20
"""That a tuple may hold, counted in each place: a hash visits as many in some 10 ms. Those of checkpoints hold ten."""

DEEPEST = 100
"""Tuples within tuples. Those of checkpoints are three deep."""

_Size = tuple[int, int]
_ATOM: _Size = (1, 0)
"""Values, and how deep. Lists, dicts and sets are as one: none of them has a hash."""

_HOLD = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET", "REDUCE", "NEWOBJ", "BUILD"}


def check_pickle(data: bytes) -> None:
    """Raise ValueError unless its tuples are as checkpoints have them; IndexError or KeyError where it is no pickle."""
    stack: list[_Size | None] = []  # None is a mark
    memo: dict[Any, _Size] = {}
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name == "MARK":
            stack.append(None)
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = _top(stack)
        elif name == "DUP":
            stack.append(_top(stack))
        else:
            held = _popped(stack, opcode.stack_before)
            pushed = _together(held) if name in _HOLD else _ATOM
            stack.extend(pushed for _ in opcode.stack_after)


def _top(stack: list[_Size | None]) -> _Size:
    return stack[-1] or _ATOM


def _popped(stack: list[_Size | None], before: list[Any]) -> list[_Size]:
    """What an opcode takes: so many values, and where it says so all above the last mark."""
    found: list[_Size] = []
    for kind in reversed(before):
        if kind is pickletools.markobject:
            continue
        if kind is pickletools.stackslice:
            while (value := stack.pop()) is not None:
                found.append(value)
        else:
            found.append(stack.pop() or _ATOM)
    return found


def _together(held: list[_Size]) -> _Size:
    values, depth = 1 + sum(size for size, _ in held), 1 + max((deep for _, deep in held), default=0)
    if values > MOST_VALUES or depth > DEEPEST:
        raise ValueError(
            f"holds a tuple of {values:,} values, {depth} deep: need {MOST_VALUES:,} and {DEEPEST} at most"
        )
    return values, depth
