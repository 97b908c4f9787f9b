"""A chain over images as links: convolutions and poolings, each with the function and normalisation behind it.

Axis 0 is vertical, 1 horizontal. A range of rows or columns is (first, one past the last).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from charcnn.layers import Conv2d, LeakyRelu, LocalResponseNorm, MaxPool2d, Relu, Sigmoid, Tanh
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Window, at_least
from charcnn.ops.common.shapes2d import normalised

LONGEST = 6
"""Convolutions of a chain at most."""

Pointwise = Relu | Tanh | Sigmoid | LeakyRelu
Layer2d = Conv2d | MaxPool2d | LocalResponseNorm | Pointwise

Range = tuple[int, int]

FAR = 1 << 14
"""So many rows above an image, more than a window has, a strip before the first ended."""


@dataclass(frozen=True)
class Link:
    """A convolution or max-pooling of a chain, with the function and the normalisation that follow it."""

    in_shape: tuple[int, int, int]
    out_shape: tuple[int, int, int]
    window: Window
    groups: int = 0
    """Of a convolution; 0: a pooling."""
    bias: bool = False
    epilogue: str = ""
    """A name of `common.epilogues`."""
    norm: LocalResponseNorm | None = None
    """Over channels, of which a block has all of each pixel: so the map is normalised where it lies."""

    @property
    def named(self) -> str:
        """Its name in tables: conv2d 11x11/4 relu."""
        (rows, columns), (down, across) = self.window.kernel, self.window.stride
        step = f"{down}" if down == across else f"{down}x{across}"
        name, norm = "conv2d" if self.groups else "maxpool2d", f"norm {self.norm.size}" if self.norm else ""
        return " ".join(filter(None, (name, f"{rows}x{columns}/{step}", self.epilogue, norm)))

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Of a convolution: (C_out, C_in / groups, KH, KW)."""
        return self.out_shape[0], self.in_shape[0] // self.groups, *self.window.kernel

    @property
    def lines(self) -> int:
        """Rows of taps of an output channel's weight."""
        return math.prod(self.weight_shape[1:3])

    @property
    def depth(self) -> int:
        """Multiplications of an output."""
        return math.prod(self.weight_shape[1:]) if self.groups else 0

    def row(self, outputs: int) -> int:
        """Values of an input's row that so many neighbours read through a row of taps."""
        taps, stride = self.window.kernel[1], self.window.stride[1]
        return min(taps * outputs, (outputs - 1) * stride + taps)

    def wants(self, axis: int, out: Range, before: int = -FAR) -> tuple[int, int, int]:
        """What of its input makes these outputs: the first, one past the last, and one past the last of `before`.

        It begins no earlier than what makes the outputs up to `before` ends. The kernel has the same in `kernel2d`.
        """
        stride, pad, size = self.window.stride[axis], self.window.padding[2 * axis], self.in_shape[1 + axis]
        last = self.window.span[axis] - pad
        had = min((before - 1) * stride + last, size)  # far away stays far away
        begin = min(max(out[0] * stride - pad, had, 0), size)
        return begin, max(min((out[1] - 1) * stride + last, size), begin), had


class Linked:
    """What follows from the links of a chain, or of one of its kernels."""

    links: tuple[Link, ...]

    @property
    def in_shape(self) -> tuple[int, int, int]:
        """(C_in, H, W)"""
        return self.links[0].in_shape

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """(C_out, H_out, W_out)"""
        return self.links[-1].out_shape

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """(C, H, W) of each map: what is read, and what each link makes."""
        return (self.in_shape, *(link.out_shape for link in self.links))

    @property
    def convolutions(self) -> tuple[int, ...]:
        """Which links are convolutions."""
        return tuple(i for i, link in enumerate(self.links) if link.groups)

    @property
    def parameter_shapes(self) -> tuple[Shape, ...]:
        """(C_out, C_in / groups, KH, KW) of each convolution's weight."""
        return tuple(self.links[i].weight_shape for i in self.convolutions)

    @property
    def biased(self) -> tuple[bool, ...]:
        """Which convolutions have a bias."""
        return tuple(self.links[i].bias for i in self.convolutions)

    @property
    def flops(self) -> int:
        """Floating-point operations an image by the layers' definitions, a multiply-add counted as two."""
        return sum(2 * link.depth * math.prod(link.out_shape) for link in self.links)

    def described(self) -> dict[str, str]:
        """Layers and maps, as `tabulated` takes them."""
        return {"layers": ", ".join(link.named for link in self.links), "feature maps": arrows(self.shapes)}


def arrows(shapes: Iterable[Sequence[int]]) -> str:
    """Shapes as text: 3x227x227 > 96x55x55."""
    return " > ".join("x".join(map(str, shape)) for shape in shapes)


def linked(layers: Sequence[Layer2d], in_shape: Sequence[int]) -> tuple[Link, ...]:
    """Convolutions and poolings of a chain, each with the function behind it; errors as of `plan2d`."""
    if len(in_shape) != 3:
        raise ValueError(f"in_shape={in_shape!r}: need (C_in, H, W)")
    for size in in_shape:
        at_least("in_shape", size, 1)
    shape: tuple[int, ...] = tuple(map(int, in_shape))
    links: list[Link] = []
    for i, layer in enumerate(layers):
        if isinstance(layer, Conv2d) or (isinstance(layer, MaxPool2d) and links):
            window, conv = layer.window(shape), isinstance(layer, Conv2d)
            if not conv and any(2 * side > window.kernel[j // 2] for j, side in enumerate(window.padding)):
                raise ValueError(f"layers[{i}] is {layer}: need padding of at most half of kernel_size")
            layer.parameters(shape)  # which checks groups
            groups, bias = (layer.groups, layer.bias) if isinstance(layer, Conv2d) else (0, False)
            links.append(Link(shape, layer.out_shape(shape), window, groups, bias))  # type: ignore[arg-type]
        elif isinstance(layer, Pointwise) and layer.epilogue and links and not (links[-1].epilogue or links[-1].norm):
            links[-1] = replace(links[-1], epilogue=layer.epilogue)
        elif isinstance(layer, LocalResponseNorm) and links and not links[-1].norm:
            normalised(shape, layer.size, layer.alpha, layer.beta, layer.k)
            links[-1] = replace(links[-1], norm=replace(layer, name=""))
        else:
            need = (
                "Conv2d, or behind one MaxPool2d, and behind these one Relu, Tanh, Sigmoid or LeakyRelu(), then one "
                "LocalResponseNorm"
            )
            raise ValueError(f"layers[{i}] is {layer!r}: need {need}")
        shape = links[-1].out_shape
    count = sum(link.groups > 0 for link in links)
    if not 1 <= count <= LONGEST:
        raise ValueError(f"layers has {count} convolutions: need 1 to {LONGEST}")
    return tuple(links)
