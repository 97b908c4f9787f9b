"""A convolution or linear layer prepared on a GPU: what its techniques share. A sequence is an image of one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.launch import Call, pair
from charcnn.gpu.replay import Replay
from charcnn.layers import Conv1d, Conv2d, Layer, Linear, windows
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Window
from charcnn.ops.common import epilogues, shapes, shapes2d
from charcnn.ops.common.epilogues import Epilogue, Pattern, Product
from charcnn.ops.common.layer import ArraySpec, NoScratch, Space
from charcnn.ops.common.moments import PART_VALUES, launch_merge
from charcnn.ops.common.precision import TENSOR_PRECISIONS, NumberFormat

POOL = 3
"""Positions of a window, in kernels that pool what they store."""


def _sizes(product: Product) -> tuple[Any, ...]:
    """Kernel and output channels."""
    if isinstance(product, Linear):
        return (product.units,)
    return np.broadcast_to(product.kernel_size, 2).tolist(), product.channels


class PreparedConv(NoScratch):
    """A product with its epilogue, its weights packed once. A technique says how they lie, and starts its kernel.

    It is called with features on the GPU in the precision's dtype, (N, L, C_in), (N, H, W, C_in), or of a linear layer
    of any shape, with two terms 2 C_in; it gives (N, L_out, C_out), (N, H_out, W_out, C_out) or (N, 1, C_out).
    """

    products: ClassVar[tuple[type, ...]] = Conv1d, Conv2d, Linear
    """What a pattern may begin with."""
    precisions: ClassVar[tuple[str, ...]] = tuple(TENSOR_PRECISIONS)
    hopper: ClassVar[bool] = False
    """Whether it needs Hopper's tensor cores."""
    tensor_cores: ClassVar[bool] = True
    """Whether it multiplies on tensor cores what these can."""
    turing: ClassVar[tuple[type, ...]] = ()
    """What a pattern may begin with on compute capability 7.5, too, in fp16."""
    longest: ClassVar[int] = 1 << 31
    """The most taps of a sequence."""

    nbytes: int
    """Of packed weights and bias on the GPU."""
    product: Product
    epilogue: Epilogue

    @classmethod
    def takes(cls, pattern: Pattern, precision: str, capability: tuple[int, int] | None = None) -> bool:
        """Whether it computes this.

        Args:
            pattern: a convolution or linear layer, and what follows it, as of `epilogues.read`.
            precision: of features and weights.
            capability: the GPU's compute capability; the current one's where None.
        """
        try:
            cls.check(pattern)
        except ValueError:
            return False
        if precision not in cls.precisions_of(pattern[0]):
            return False
        of, turing = TENSOR_PRECISIONS.get(precision), isinstance(pattern[0], cls.turing)
        least = of.capability if of else device.AMPERE
        if not turing:
            least = max(least, device.AMPERE)
        if capability is None:
            cores = not (of and cls.tensor_cores) or device.has_tensor_cores(hopper=cls.hopper, turing=turing)
            return cores and device.has_capability(least)
        return capability >= least and (capability[0] == 9 or not cls.hopper)

    @classmethod
    def precisions_of(cls, product: Layer) -> tuple[str, ...]:
        """Those in which it computes this product."""
        return cls.precisions

    @classmethod
    def check(cls, pattern: Pattern) -> tuple[Product, Epilogue]:
        """The product and what follows it.

        Raises:
            ValueError: the technique does not compute that.
        """
        product, epilogue = epilogues.read(pattern)
        if not isinstance(product, cls.products):
            raise ValueError(f"{product}: need {' or '.join(one.__name__ for one in cls.products)} for {cls.__name__}")
        if isinstance(product, Conv1d) and product.kernel_size > cls.longest:
            raise ValueError(f"weight has {product.kernel_size} taps: need at most {cls.longest}")
        cls.check_pool(product, epilogue)
        return product, epilogue

    @classmethod
    def check_pool(cls, product: Product, epilogue: Epilogue) -> None:
        """Raise ValueError where it has not this pooling: of sequences, windows of 3 behind ReLU."""
        if not epilogue.pool:
            return
        if not isinstance(product, Conv1d):
            raise ValueError(f"{product} with max-pooling: need none for {cls.__name__}")
        if epilogue.pool_size != POOL or not epilogue.rectified:
            raise ValueError(f"pool_size={epilogue.pool_size}: need {POOL}, behind ReLU")

    def _read(
        self, pattern: Pattern, weights: Mapping[str, Any], precision: NumberFormat, results: NumberFormat,
        together: int, *, length: int | None = None, moments: bool = False, y_unit: float = 1.0,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Take what is computed; the weight as (taps, C_in / groups, C_out), and the bias.

        Args:
            together: channels that lie together: a group has a multiple, and a pixel is padded to one.
            length: of a sequence, with pooling how many positions of x count, else how many are written; None: all, and
                all valid ones.
            moments: whether moments are taken.
            y_unit: what 1 stands for in results.
        """
        self._replay = Replay(own=True, by_address=2 * self.hopper)  # of x, and of what is written
        self.product, epilogue = self.check(pattern)
        weight, bias = weights["weight"], weights.get("bias")
        if bias is None:
            bias = np.zeros(tuple(weight.shape)[-1], np.float32)
            bias = device.to_device(bias) if device.on_device(weight) else bias
        epilogues.check(epilogue.pointwise, y_unit)
        if moments and epilogue != Epilogue():
            raise ValueError(f"pattern={list(pattern)}: need nothing behind {self.product} where moments are taken")
        self.epilogue = replace(epilogue, moments=moments, results=results)
        self.precision, self.results, self.length, self._together = precision, results, length, together
        self.groups, self.x_terms = 1, precision.terms
        if isinstance(self.product, Conv2d):
            self.groups = self.product.groups
            *kernel, width, self.c_out = shapes2d.filters(weight, bias, self.groups)
            if self.groups > 1 and width % together:
                raise ValueError(f"weight has C_in/groups={width}: need a multiple of {together} in {precision.name}")
        else:
            weight = weight.reshape((1, *weight.shape)) if isinstance(self.product, Linear) else weight
            taps, width, self.c_out = shapes.ranked("weight", weight, "K, C_in, C_out")
            shapes.conv1d_nlc(np.empty((0, max(1, taps), width)), weight, bias)  # checks what can be of both
            kernel = [1, taps]
        self.kernel, self.c_in = (kernel[0], kernel[1]), self.groups * width
        wanted = epilogues.product_of(weights["weight"], **getattr(self.product, "moves", {}))
        if _sizes(wanted) != _sizes(self.product):
            raise ValueError(f"weight has shape {tuple(weights['weight'].shape)}: need that of {self.product}")
        self.width = -(-self.c_in // together) * together
        """Channels of a pixel of x, or of each of its terms."""
        return weight.reshape((prod(kernel), width, self.c_out)), bias

    def _check_unpadded(self, weights: Mapping[str, Array]) -> None:
        """Raise ValueError where features would be padded, or there are none."""
        if self.width != self.c_in or not self.c_in:
            shape = tuple(weights["weight"].shape)
            raise ValueError(f"weight has shape {shape}: need C_in a multiple of {self._together}")

    @property
    def taps(self) -> int:
        """Of a sequence's window."""
        return self.kernel[1]

    def window(self, x: Shape) -> Window:
        """How the window moves over images x (N, H, W, C)."""
        assert isinstance(self.product, Conv2d)
        moves = self.product.stride, self.product.padding, self.product.dilation
        return windows.window(x[1], x[2], self.kernel, *moves)

    def out_shape(self, x: Shape) -> Shape:
        """The result's, of features of this shape."""
        channels = self.results.terms * self.c_out
        if isinstance(self.product, Conv2d):
            size = self.window(x).out(x[1], x[2])
            if (pool := self.epilogue.pool) is not None:
                size = shapes2d.pool2d_window(*size, pool.kernel, pool.stride).out(*size)
            return x[0], *size, channels
        if isinstance(self.product, Linear):
            return x[0], 1, channels
        written = x[1] - self.taps + 1
        if self.length is not None:
            written = self.length - self.taps + 1 if self.epilogue.pool else self.length
        return x[0], written // self.epilogue.pool_size, channels

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        return [ArraySpec(self.out_shape(x), self.results.dtype)]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features; the result."""
        (y,) = self.writes(x.shape)
        return self.apply(x, out=space.device(*y), stream=space.stream)

    def apply(self, x: Array, *, out: Array = None, stream: Stream = None) -> Array:
        """Start on features.

        Args:
            x: on the GPU, C-contiguous.
            out: where to write, of `out_shape`; made where None.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        done = self._replay.started((x,), (self.length,), out, stream)
        if done is not None:
            return done
        call = self._call(x, out, stream)
        if call.out.size:
            self._start(call)
        self._replay.keep(call, (x,), (self.length,), out)
        return call.result()

    def into(self, call: Call, features: Array, shape: Shape) -> None:
        """Start on features of x of this shape, cast for the call, into its result, of the same many values."""
        features = features.reshape((*shape[:-1], features.shape[2]))
        out = call.out.reshape(self.out_shape(features.shape))
        self.apply(features, out=out, stream=call.stream)

    def with_moments(
        self, x: Array, *, out: Array = None, stream: Stream = None, partial_moments: Array = None
    ) -> Array:
        """Start on features: y, and stat float64 (N, 2), mean and variance of each input's y before it was rounded.

        Args:
            out: (y, stat), likewise.
            partial_moments: scratch, float32 of `partial_moments_shape(N, L)` on the GPU; made where None, which waits
                for the GPU.
        """
        y, stat = pair(out)
        call = self._call(x, y, stream, **({} if stat is None else {"stat": stat}))
        n, length = call.inputs[0].shape[:2]
        if stat is not None:
            shapes.expect("stat", stat, (n, 2))
        statistics = call.scratch((n, 2), np.float64) if stat is None else call.inputs[1]
        if partial_moments is None:
            partial_moments = call.scratch(self.partial_moments_shape(n, length), np.float32)
        if call.out.size:
            self._start(call, partial_moments)
        values = call.out.shape[1] * self.c_out
        part, row = self.parts(call.out.shape[1])
        launch_merge(call, partial_moments, values, statistics, part=part, row=row)
        return call.result(), call.second(statistics, stat)

    def with_partial_moments(
        self, x: Array, partial_moments: Array, *, out: Array = None, stream: Stream = None
    ) -> Array:
        """Start on features: y, and moments of parts of each input, float32 of `partial_moments_shape(N, L)`."""
        arrays, options = (x, partial_moments), (self.length, "moments")
        done = self._replay.started(arrays, options, out, stream)
        if done is not None:
            return done
        shapes.expect("partial_moments", partial_moments, self.partial_moments_shape(*x.shape[:2]))
        call = self._call(x, out, stream, partial_moments=partial_moments)
        if call.out.size:
            self._start(call, call.inputs[1])
        self._replay.keep(call, arrays, options, out)
        return call.result()

    part: int
    """Values of a part of a row, of which moments are taken; the last one may have fewer."""

    def parts(self, written: int) -> tuple[int, int]:
        """Values of a part, of which moments are taken, and of a row of parts; of so many positions of an input."""
        return self.part, self.c_out

    def partial_moments_shape(self, n: int, length: int) -> Shape:
        """Of moments of parts, for x (n, length, C_in)."""
        written = length - self.taps + 1
        part, row = self.parts(written)
        return n, written * self.c_out // max(1, row) * -(-row // part), PART_VALUES

    def _call(self, x: Array, out: Array, stream: Stream, **more: Any) -> Call:
        if isinstance(self.product, Linear):
            x = x.reshape((x.shape[0], 1, prod(x.shape[1:])))
        shape = self._check(x)
        if not device.on_device(x):
            raise ValueError(f"x is a {type(x).__name__}: need an array on the GPU")
        call = Call(out, stream, self.out_shape(shape), self.results.dtype, {"x": self.precision.dtype}, x=x, **more)
        images = isinstance(self.product, Conv2d)
        if images and (max(prod(call.out.shape[:3]), prod(shape[:3])) >= 1 << 31 or prod(shape) >= 1 << 40):
            raise ValueError(f"x has shape {shape}: that many pixels in all need a smaller batch")
        return call

    def _check(self, x: Array) -> Shape:
        """The shape of features, which fits."""
        images = isinstance(self.product, Conv2d)
        shape = shapes.ranked("x", x, "N, H, W, C_in" if images else "N, L, C_in")
        if shape[-1] != self.x_terms * self.width:
            whole = f", a multiple of {self._together}" if self._together > 1 else ""
            also = " and as many for low terms" if self.x_terms == 2 else ""
            raise ValueError(f"x has shape {shape}: need C_in={self.width}{whole}{also}")
        if not images:
            self._check_length(shape[1])
        return shape

    def _check_length(self, given: int) -> None:
        """Raise ValueError where a sequence of so many positions is too short, or `length` is none of them."""
        if given < self.taps:
            raise ValueError(f"x has {given} positions: need at least {self.taps} for K={self.taps}")
        least, most, valid = self.taps, given, given - self.taps + 1
        if self.epilogue.pool:
            least += self.epilogue.pool_size - 1
        elif self.length is not None:
            least = valid
        if self.epilogue.pool and given < least and self.length is None:
            raise ValueError(f"x has {given} positions: need at least {least} for a window of results")
        if self.length is not None and not least <= self.length <= most:
            raise ValueError(f"length={self.length}: need {least} to {given}, the positions of x")

    def _start(self, call: Call, partial_moments: Array = None) -> None:
        """Launch the kernel for x, the call's first input."""
        raise NotImplementedError
