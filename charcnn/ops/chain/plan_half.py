"""A chain of convolutions in half precision: what its kernel holds and reads, and its weights on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from charcnn.gpu import device
from charcnn.gpu.launch import Call, pair
from charcnn.ops.chain.kernel_half import M_TILES, MOST_CHANNELS, WARP_N, make_half_kernel, packed, smem_bytes
from charcnn.ops.chain.planned import tabulated
from charcnn.ops.common.precision import HALF_PRECISIONS, NumberFormat
from charcnn.ops.common.shapes import expect, ranked


@dataclass(frozen=True)
class HalfPlan:
    """A chain of convolutions of as many channels as they read, ReLU between each two: one kernel, a block an input.

    Features are channels-last. `describe()` tells what it does; `prepare(weights, biases)` gives the function.
    """

    convolutions: int
    channels: int
    taps: int
    length: int
    stat: bool
    precision: NumberFormat

    @property
    def length_out(self) -> int:
        """Positions of an input's result."""
        return self.length - self.convolutions * (self.taps - 1)

    @property
    def m_tiles(self) -> int:
        """Sixteens of positions that hold the first convolution's output."""
        return -(-(self.length - self.taps + 1) // 16)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return smem_bytes(self.m_tiles, self.channels, self.taps)

    @property
    def flops(self) -> int:
        """Floating-point operations an input, each output computed once, a multiply-add counted as two."""
        positions = sum(self.length - (i + 1) * (self.taps - 1) for i in range(self.convolutions))
        return 2 * positions * self.taps * self.channels**2

    @property
    def computed_flops(self) -> int:
        """Those that tensor cores compute: of whole sixteens of positions."""
        return 2 * 16 * self.m_tiles * self.convolutions * self.taps * self.channels**2

    @property
    def weight_bytes(self) -> int:
        """Read from the second-level cache for each input: no two inputs share a block."""
        return self.precision.itemsize * self.convolutions * self.taps * self.channels**2

    @property
    def feature_bytes(self) -> int:
        """Of an input, read and written: what a kernel a layer moves for the maps between, too, this does not."""
        return self.precision.itemsize * self.channels * (self.length + self.length_out)

    def describe(self) -> str:
        """Shared memory, work and bytes as a table, before anything is compiled."""
        kernel = {
            "kernel": "1, a block an input",
            "feature maps": f"{self.channels}x{self.length} > {self.channels}x{self.length_out}, one held at a time",
            "threads a block": f"{self.channels}",
            "sums a thread": f"{16 * self.m_tiles} positions x {WARP_N} channels a warp",
            "shared memory": f"{self.shared_bytes:,} bytes a block",
        }
        chain = {
            "work": f"{self.flops:,} FLOP an input, {self.computed_flops:,} in whole tiles",
            "maps in DRAM": f"{self.feature_bytes:,} bytes an input",
            "weights from L2": f"{self.weight_bytes:,} bytes an input",
        }
        return tabulated((kernel, chain))

    def prepare(self, weights: Sequence[np.ndarray], biases: Sequence[np.ndarray]) -> HalfChain:
        """The chain's function, with its weights packed on the current GPU.

        Args:
            weights: float32 (C, C, K) each, as PyTorch has them, NumPy arrays; biases: (C,) each.

        Raises:
            ValueError: an argument's shape does not fit.
            DeviceError: no usable GPU, or one of compute capability below 8.0.
        """
        return HalfChain(self, weights, biases)


def plan_half(sizes: Sequence[tuple[int, int]], relus: Sequence[bool], stat: bool, in_channels: int, length: int,
              precision: str) -> HalfPlan:  # fmt: skip
    """The plan of convolutions of these (channels, taps).

    Raises:
        ValueError: the kernel does not take such a chain; says which do.
    """
    channels, taps = sizes[0]
    if any(size != (in_channels, taps) for size in sizes):
        raise ValueError(
            f"precision={precision!r}: convolutions of {', '.join(f'{c} channels and {k} taps' for c, k in sizes)} on "
            f"{in_channels} channels: need the same of all; precision='fp32' takes any"
        )
    if channels % WARP_N or not 0 < channels <= MOST_CHANNELS:
        raise ValueError(f"{in_channels=}: need a multiple of {WARP_N}, at most {MOST_CHANNELS}, in {precision}")
    if tuple(relus) != (*[True] * (len(sizes) - 1), False):
        raise ValueError(f"precision={precision!r}: need Relu after each convolution but the last")
    made = HalfPlan(len(sizes), channels, taps, length, stat, HALF_PRECISIONS[precision])
    if made.length_out < 1 or made.m_tiles > M_TILES:
        raise ValueError(
            f"{length=}: need {len(sizes) * (taps - 1) + 1} to {16 * M_TILES + taps - 1} positions for {len(sizes)} "
            f"convolutions of {taps} taps in {precision}"
        )
    return made


class HalfChain:
    """A planned chain's weights on the current GPU, as a function of features.

    Args:
        plan, weights, biases: as of `HalfPlan.prepare`.
    """

    def __init__(self, plan: HalfPlan, weights: Sequence[np.ndarray], biases: Sequence[np.ndarray]) -> None:
        device.require_capability((8, 0), "a chain in half precision", "use precision='fp32'")
        for name, arrays, shape in (
            ("weights", weights, (plan.channels, plan.channels, plan.taps)),
            ("biases", biases, (plan.channels,)),
        ):
            if len(arrays) != plan.convolutions:
                raise ValueError(f"{name}: got {len(arrays)} arrays, need {plan.convolutions}, one a convolution")
            for i, array in enumerate(arrays, 1):
                expect(f"{name[:-1] if name == 'weights' else 'bias'}{i}", array, shape)
        self._plan = plan
        self._weight = device.to_device(packed(np.stack(weights), plan.precision))
        self._bias = device.to_device(np.stack(biases).astype(np.float32))
        self.nbytes: int = self._weight.nbytes + self._bias.nbytes

    def __call__(self, x: Any, *, out: Any = None, stream: Any = None) -> Any:
        """Start on x (N, L, C) in the precision's dtype, on the GPU: y (N, L_out, C) there; with Stat (y, stat).

        Args:
            out: where to write, with Stat a pair; made where None. stat is float64 (N, 2): mean and biased variance of
                each input's y before it is rounded.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        plan, dtype = self._plan, self._plan.precision.dtype
        n = ranked("x", x, "N, L, C")[0]
        expect("x", x, (n, plan.length, plan.channels))
        if not device.on_device(x):
            raise ValueError(f"x is a {type(x).__name__}: need an array on the GPU")
        y, stat = pair(out) if plan.stat else (out, None)
        call = Call(y, stream, (n, plan.length_out, plan.channels), dtype, {"x": dtype}, x=x)
        moments = call.scratch((n, 2), np.float64) if stat is None else device.as_device_array(stat, call.stream)
        expect("stat", moments, (n, 2))
        arrays = call.inputs[0], self._weight, self._bias, call.out
        kernel = make_half_kernel(
            plan.precision.ptx_type, plan.convolutions, plan.taps, plan.channels, plan.m_tiles, plan.stat
        )
        call.launch(
            kernel, n, plan.channels, *(np.uint64(device.address(array)) for array in arrays), moments,
            np.uint32(plan.length), shared=plan.shared_bytes,
        )  # fmt: skip
        return (call.result(), moments if stat is None else stat) if plan.stat else call.result()
