"""The layers of a network that take images (C, H, W), and those that make them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from charcnn.aliases import Record
from charcnn.layers import windows
from charcnn.layers.layer import Layer, Shape
from charcnn.layers.windows import Padding, Pair, Window


@dataclass(frozen=True)
class Pixels(Layer):
    """Bytes (C * H * W,) as an image (C, H, W) of (byte / 255 - mean) / std.

    Args:
        channels, height, width: int: C, H and W.
        mean: floats, default (0.0,): one a channel.
        std: floats, default (1.0,): one a channel.
    """

    channels: int
    height: int
    width: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    in_itemsize = 1

    def out_shape(self, shape: Shape) -> Shape:
        """(C, H, W)"""
        image = self.channels, self.height, self.width
        if shape != (math.prod(image),):
            raise ValueError(f"{self.label} reads shape {shape}: need ({math.prod(image)},)")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                raise ValueError(f"{self.label}: {name}={values}: need {self.channels}, one a channel")
        return image


class Window2d(Layer):
    """What moves a window over an image: subclasses say what they make of its values."""

    kernel_size: Pair
    stride: Pair | None
    padding: Padding
    dilation: Pair = 1

    def window(self, shape: Shape) -> Window:
        """How it moves over an image (C, H, W).

        Raises:
            ValueError: it does not fit; names the layer.
        """
        _, height, width = self._read(shape, "C, H, W")
        try:
            kernel = windows.pair("kernel_size", self.kernel_size)
            stride = kernel if self.stride is None else self.stride
            return windows.window(height, width, kernel, stride, self.padding, self.dilation)
        except ValueError as error:
            raise ValueError(f"{self.label}: {error}") from None

    def out_shape(self, shape: Shape) -> Shape:
        """(C, H_out, W_out)"""
        return shape[0], *self.window(shape).out(*shape[1:])


@dataclass(frozen=True)
class Conv2d(Window2d):
    """A convolution: (C, H, W) -> (channels, H_out, W_out).

    Args:
        channels: int: of the result.
        kernel_size: of the window, an int or (vertical, horizontal).
        stride: from one window to the next, an int or (vertical, horizontal); default 1.
        padding: zeros around an image: an int, (vertical, horizontal), (top, bottom, left, right), "valid" for none, or
            "same" for ceil(size / stride) windows, as TensorFlow has it; default 0.
        dilation: from one tap to the next, an int or (vertical, horizontal); default 1.
        groups: int, default 1: a divisor of C and channels; output channels of each see input channels of the same.
        bias: bool, default True: whether there is one.
    """

    channels: int
    kernel_size: Pair
    stride: Pair = 1
    padding: Padding = 0
    dilation: Pair = 1
    groups: int = 1
    bias: bool = True

    @property
    def moves(self) -> Record:
        """How its window moves, as operators take it."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}

    def out_shape(self, shape: Shape) -> Shape:
        """(channels, H_out, W_out)"""
        return self.channels, *self.window(shape).out(*shape[1:])

    def parameters(self, shape: Shape) -> dict[str, Shape]:
        """weight (channels, C / groups, KH, KW), bias (channels,) where it has one"""
        if shape[0] % self.groups or self.channels % self.groups:
            need = f"need a divisor of {shape[0]} and {self.channels} channels"
            raise ValueError(f"{self.label}: groups={self.groups}: {need}")
        weight = self.channels, shape[0] // self.groups, *self.window(shape).kernel
        return {"weight": weight, "bias": (self.channels,)} if self.bias else {"weight": weight}

    def multiply_adds(self, shape: Shape) -> int:
        """One a weight of a channel, for each value of the result."""
        return math.prod(self.parameters(shape)["weight"][1:]) * math.prod(self.out_shape(shape))


@dataclass(frozen=True)
class MaxPool2d(Window2d):
    """The maximum of each window: (C, H, W) -> (C, H_out, W_out).

    Args:
        kernel_size: of the window, an int or (vertical, horizontal).
        stride: from one window to the next, likewise; kernel_size where None, the default.
        padding: -inf around an image, at most half of kernel_size, in the forms that `Conv2d` takes; default 0.
    """

    kernel_size: Pair
    stride: Pair | None = None
    padding: Padding = 0


@dataclass(frozen=True)
class AvgPool2d(Window2d):
    """The mean of each window, padding counted as zeros: (C, H, W) -> (C, H_out, W_out).

    Args:
        kernel_size: of the window, an int or (vertical, horizontal).
        stride: from one window to the next, likewise; kernel_size where None, the default.
        padding: zeros around an image, at most half of kernel_size, in the forms that `Conv2d` takes; default 0.
    """

    kernel_size: Pair
    stride: Pair | None = None
    padding: Padding = 0


@dataclass(frozen=True)
class GlobalAvgPool2d(Layer):
    """The mean of each channel: (C, H, W) -> (C,)."""

    def out_shape(self, shape: Shape) -> Shape:
        """(C,)"""
        return self._read(shape, "C, H, W")[:1]


@dataclass(frozen=True)
class BatchNorm2d(Layer):
    """At inference: each channel minus its mean, over the root of its variance + eps, times weight, plus bias.

    Mean and variance are parameters, fixed by training.

    Args:
        eps: float, default 1e-5: added to the variance, greater than 0.
    """

    eps: float = 1e-5

    def parameters(self, shape: Shape) -> dict[str, Shape]:
        """weight, bias, running_mean, running_var: (C,) each, as PyTorch names them."""
        return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), self._read(shape, "C, H, W")[:1])


@dataclass(frozen=True)
class LocalResponseNorm(Layer):
    """Each value over (k + alpha / size * s) ** beta, s the sum of squares of neighbouring channels.

    Args:
        size: int, default 5: how many channels, about the value's own.
        alpha: float, default 1e-4: factor of their sum of squares.
        beta: float, default 0.75: the power.
        k: float, default 1.0: added to the sum, greater than 0.
    """

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0
