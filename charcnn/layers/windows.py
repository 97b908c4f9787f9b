"""How a window moves over an image, and the checks of its sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from numbers import Integral
from typing import Any

LARGEST = (1 << 31) - 1
"""Of strides and whatever else counts."""

Pair = int | tuple[int, int]
"""For both axes, or (vertical, horizontal)."""

Padding = int | tuple[int, int] | tuple[int, int, int, int] | str
"""On all sides; (vertical, horizontal); (top, bottom, left, right); "valid": none; "same": as TensorFlow pads."""


@dataclass(frozen=True)
class Window:
    """How a window moves over an image: every number is there, and fits."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """(top, bottom, left, right)"""
    dilation: tuple[int, int] = (1, 1)

    @property
    def span(self) -> tuple[int, int]:
        """Rows and columns from its first to its last value."""
        return self.dilation[0] * (self.kernel[0] - 1) + 1, self.dilation[1] * (self.kernel[1] - 1) + 1

    @property
    def in_steps(self) -> tuple[int, int]:
        """Rows and columns of blocks as large as a step that it reaches over."""
        down, across = (-(-taps // step) for taps, step in zip(self.kernel, self.stride, strict=True))
        return down, across

    def padded(self, height: int, width: int) -> tuple[int, int]:
        """An image's size with its padding."""
        top, bottom, left, right = self.padding
        return height + top + bottom, width + left + right

    def out(self, height: int, width: int) -> tuple[int, int]:
        """How many windows an image has, vertically and horizontally."""
        sizes = zip(self.padded(height, width), self.span, self.stride, strict=True)
        vertical, horizontal = ((size - span) // stride + 1 for size, span, stride in sizes)
        return vertical, horizontal


def pair(name: str, value: Any, least: int = 1) -> tuple[int, int]:
    """(vertical, horizontal) of an int or a pair of ints."""
    values = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value, value)
    if len(values) != 2:
        raise ValueError(f"{name}={value!r}: need an int, or (vertical, horizontal)")
    for one in values:
        at_least(name, one, least)
    return int(values[0]), int(values[1])


def window(
    height: int,
    width: int,
    kernel: tuple[int, int],
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    *,
    of: str = "weight",
) -> Window:
    """The window for an image of this size, which must hold one at least.

    Args:
        height, width: of the image.
        kernel: rows and columns of taps.
        stride, dilation: an int, or (vertical, horizontal): from a window to the next, from a tap to the next.
        padding: zeros: an int, (vertical, horizontal), (top, bottom, left, right), "valid" or "same".
            "same" gives ceil(size / stride) windows, the odd row or column of padding behind, as TensorFlow does.
        of: what has the kernel, for errors.
    """
    steps, apart = pair("stride", stride), pair("dilation", dilation)
    found = Window(kernel, steps, dilation=apart)
    if padding == "same":
        sides: list[int] = []
        for size, step, span in zip((height, width), steps, found.span, strict=True):
            total = max((-(-size // step) - 1) * step + span - size, 0)
            sides += [total // 2, total - total // 2]
    elif padding == "valid":
        sides = [0] * 4
    elif isinstance(padding, Sequence) and not isinstance(padding, str) and len(padding) == 4:
        sides = list(padding)
        for side in sides:
            at_least("padding", side, 0)
    elif isinstance(padding, str):
        raise ValueError(f"{padding=}: need an int, (vertical, horizontal), (top, bottom, left, right), valid or same")
    else:
        vertical, horizontal = pair("padding", padding, 0)
        sides = [vertical, vertical, horizontal, horizontal]
    found = Window(kernel, steps, (sides[0], sides[1], sides[2], sides[3]), apart)
    # A step beyond the image is one to its end: tiles are as large as steps.
    down, across = (max(1, min(step, size)) for step, size in zip(steps, found.padded(height, width), strict=True))
    found = replace(found, stride=(down, across))
    if min(kernel) < 1:
        raise ValueError(f"{of} has a kernel of {kernel[0]} x {kernel[1]}: need at least 1 x 1")
    if any(span > size for span, size in zip(found.span, found.padded(height, width), strict=True)):
        padded, spans = found.padded(height, width), found.span
        raise ValueError(
            f"x has {height} x {width} pixels, {padded[0]} x {padded[1]} with padding={padding!r}: need at least "
            f"{spans[0]} x {spans[1]} for a kernel of {kernel[0]} x {kernel[1]}, {dilation=}"
        )
    countable(padding, prod(found.out(height, width)))
    return found


def at_least(name: str, value: int, least: int) -> None:
    """Raise unless the value is an int of at least `least`, and at most LARGEST."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name}={value!r}: need an int of at least {least}")
    if value > LARGEST:
        raise ValueError(f"{name}={value!r}: need an int of at most {LARGEST}, as kernels count in 32 bits")


def countable(padding: Any, windows: int) -> None:
    """Raise where there are more windows than kernels count, as much padding gives an image."""
    if windows > LARGEST:
        raise ValueError(
            f"padding={padding!r}: gives {windows} windows, need {LARGEST} at most: kernels count in 32 bits"
        )
