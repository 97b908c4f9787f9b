"""The layers of a level whose tiles can be chosen: each made ready to run on random numbers, and to be checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle
from typing import Any

import numpy as np

from charcnn import catalog, ops
from charcnn.aliases import Array, Record
from charcnn.config import POOL_SIZE, POOLED_BLOCKS, Config
from charcnn.gpu import device, ptx
from charcnn.gpu.launch import Call
from charcnn.ops.common import cast, epilogues, mma_layout
from charcnn.ops.common.precision import FP32, LARGEST_E4M3, TENSOR_PRECISIONS, NumberFormat
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.winograd import WinogradConv
from charcnn.ops.linear.few_outputs import FewOutputsLinear

LEVELS = tuple(row.name for row in catalog.LEVELS if row.tuned)
"""Whose layers have tiles to choose; level 16's kernels for few inputs have none."""

DRAWN = 8
"""Inputs drawn; a batch is these again and again, as its numbers decide how much power a product takes."""

UNIT = {"fp8": 5 / LARGEST_E4M3}
"""What 1 stands for in features: of normal numbers, what lies beyond 5 is not worth the range."""


@dataclass(frozen=True)
class TunedLayer:
    """A convolution or linear layer, and what computes it."""

    name: str
    operator: str
    """Of the catalogue."""
    technique: str
    """Of the catalogue."""
    precision: str
    length: int
    """Positions of its input; 1 of a linear layer."""
    taps: int
    c_in: int
    c_out: int

    @property
    def flop(self) -> int:
        """Of an input, as the reference computes it."""
        return 2 * (self.length - self.taps + 1) * self.taps * self.c_in * self.c_out

    @property
    def tolerance(self) -> float:
        """Largest ||out - ref|| / ||ref||."""
        own = TENSOR_PRECISIONS.get(self.precision)
        return own.tolerance if own else catalog.operator(self.operator).tolerance


@dataclass
class LoadedLayer:
    """A layer with its arrays on the current GPU."""

    start: Callable[[Any], Any]
    """Starts it on a stream."""
    out: tuple[Array, ...]
    """Where it writes: y, and where it measures, stat."""
    decode: Callable[[Any], np.ndarray]
    """y as numbers on the host."""
    expected: tuple[np.ndarray, ...]
    """In float64, of the inputs drawn."""
    allocates: bool
    """Whether `start` makes arrays of its own."""

    def poison(self) -> None:
        """Write NaN wherever results go: all bits set, in every format."""
        for array in self.out:
            array.copy_to_device(np.full(array.nbytes, 0xFF, np.uint8).view(array.dtype).reshape(array.shape))

    def error(self) -> float:
        """The largest ||out - ref|| / ||ref|| of DRAWN inputs one after another; NaN where there is one."""
        y, *stat = self.out
        errors = []
        for got, exact in zip((self.decode(y), *(s.copy_to_host() for s in stat)), self.expected, strict=True):
            for start in range(0, len(got), DRAWN):
                part = got[start : start + DRAWN]
                wanted = exact[: len(part)]
                errors.append(np.linalg.norm(part - wanted) / np.linalg.norm(wanted))
        return float(np.max(errors))


def of_level(level: str, config: Config, precision: str | None = None) -> Iterator[TunedLayer]:
    """The level's layers at these sizes, in the order of the network.

    Raises:
        ValueError: the level has no tiles to choose, or not this precision.
    """
    row = next((row for row in catalog.LEVELS if row.name == level), None)
    if row is None or row.tuned is None:
        raise ValueError(f"{level=}: need one of {', '.join(LEVELS)}, whose tiles can be chosen")
    conv, linear = row.tuned
    arithmetic = row.precision(precision)
    lengths = (config.length, *config.block_lengths)
    for block in range(2 if row.gathered else 1, 7):  # the others' block 1 is a gather
        measured = config.layernorm and block in (1, 6)
        operator = "conv1d_stat_nlc" if measured else "conv1d_relu_nlc"
        if not measured and block in POOLED_BLOCKS:
            operator = "conv1d_relu_maxpool1d_nlc"
        c_in = -(-config.in_channels(block) // 4) * 4 if block == 1 else config.in_channels(block)
        sizes = lengths[block - 1], config.kernel_sizes[block - 1], c_in, config.block_channels[block - 1]
        yield TunedLayer(f"conv{block}", operator, conv, arithmetic, *sizes)
    units = config.features, *config.fc_units
    few = row.small_batches and FewOutputsLinear.takes(config.pattern("fc3"), arithmetic, (9, 0))
    for i in (1, 2) if few else (1, 2, 3):  # the last one of few classes has no tiles
        operator = "linear_nlc" if i == 3 else "linear_relu_nlc"
        yield TunedLayer(f"fc{i}", operator, linear, arithmetic, 1, 1, units[i - 1], units[i])


def prepare(layer: TunedLayer, batch: int) -> LoadedLayer:
    """Draw numbers, compute what is expected, and lay out weights and features."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((DRAWN, layer.length, layer.c_in), np.float32)
    weight = draw.standard_normal((layer.taps, layer.c_in, layer.c_out), np.float32)
    weight /= np.float32(np.sqrt(layer.taps * layer.c_in))
    bias = draw.standard_normal(layer.c_out, np.float32)
    pooled = (POOL_SIZE,) if "maxpool1d" in layer.operator else ()
    linear = layer.operator.startswith("linear")
    if linear:
        x, weight = x[:, 0], weight[0]
    exact = (array.astype(np.float64) for array in (x, weight, bias))
    expected = catalog.operator(layer.operator).reference(*exact, *pooled)
    expected = expected if isinstance(expected, tuple) else (expected,)
    if layer.technique not in ("mma", "wgmma"):
        return _floats(layer, x, weight, bias, pooled, expected, batch)
    if linear:  # a convolution of one position
        x, weight, expected = x[:, None], weight[None], (expected[0][:, None],)
    return _tensor_cores(layer, x, weight, bias, pooled, expected, batch)


def _repeated(drawn: np.ndarray, batch: int) -> Any:
    return device.to_device(drawn[np.arange(batch) % DRAWN])


def _floats(layer, x, weight, bias, pooled, expected, batch):
    x, weight, bias = _repeated(x, batch), device.to_device(weight), device.to_device(bias)
    y, *stat = (device.empty((batch, *e.shape[1:]), np.float64 if i else np.float32) for i, e in enumerate(expected))
    given: Record = {"out": (y, *stat) if stat else y}
    if layer.technique == "winograd":
        pattern = epilogues.pattern_of(weight, "relu" if "relu" in layer.operator else "", *pooled)
        conv = WinogradConv(pattern, {"weight": weight, "bias": bias}, moments=bool(stat))
        method, arguments = conv.with_moments if stat else conv.apply, (x,)
        two = cycle((cache(partial(device.empty, dtype=np.float32)), cache(partial(device.empty, dtype=np.float32))))
        given["space"] = lambda shape: next(two)(shape)  # each run takes the same two
    else:
        method, arguments = getattr(ops, f"{layer.operator}_{layer.technique}"), (x, weight, bias, *pooled)
    return LoadedLayer(
        lambda s: method(*arguments, **given, stream=s), (y, *stat), device.to_host, expected, allocates=True
    )


def _tensor_cores(layer, x, weight, bias, pooled, expected, batch):
    of, unit = TENSOR_PRECISIONS[layer.precision], UNIT.get(layer.precision, 1.0)
    call = Call(None, None, x.shape, x=x)
    last, measured = layer.name == "fc3", "stat" in layer.operator
    relu = "relu" if "relu" in layer.operator else ""
    given: Record = {"precision": of.name, "x_unit": unit, "moments": measured}
    given["length"] = layer.length if pooled else None
    arguments = epilogues.pattern_of(weight, relu, *pooled), {"weight": weight, "bias": bias}
    y_unit = 1.0
    if layer.technique == "mma":
        wide = last or (measured and of.size == 4)  # what LayerNorm reads there, and logits, are float32
        results = FP32 if wide else of
        conv, positions = MmaConv(*arguments, results=results.name, **given), layer.length
        drawn = mma_layout.encode(call, call.inputs[0], positions, conv.width, of, unit)
    else:
        results = FP32 if last or (measured and of.name not in ("fp16", "bf16", "fp8")) else of
        y_unit = 1.0 if results is FP32 or measured else unit
        conv = WgmmaConv(*arguments, results=results.name, y_unit=y_unit, **given)
        positions = -(-layer.length // POOL_SIZE) * POOL_SIZE if pooled else layer.length
        drawn = cast.narrow(call, call.inputs[0], positions, conv.width, of, 1 / unit)
    given = {}
    shape = (batch, *expected[0].shape[1:-1], results.terms * layer.c_out)
    y, stat = device.empty(shape, results.dtype), ()
    if measured:
        stat = (device.empty((batch, 2), np.float64),)
        given["partial_moments"] = device.empty(conv.partial_moments_shape(batch, layer.length), np.float32)
    given["out"] = (y, *stat) if measured else y
    x = _repeated(device.to_host(drawn), batch)
    run = conv.with_moments if measured else conv.apply

    def decode(y):
        if results.ptx_type != "e4m3" and (layer.technique == "mma" or results.ptx_type in ("f32", "tf32")):
            return decoded(y.copy_to_host(), results)
        shape = (*y.shape[:-1], layer.c_out)
        widened = Call(None, None, shape, dtypes={"x": results.dtype}, x=y)
        cast.widen(widened, y, widened.out, results, y_unit)
        return widened.out.copy_to_host()

    return LoadedLayer(lambda s: run(x, **given, stream=s), (y, *stat), decode, expected, allocates=False)


def decoded(array: np.ndarray, of: NumberFormat) -> np.ndarray:
    """Features of 16 or 32 bits a value, as `MmaConv` has them, as numbers."""
    if of.ptx_type == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    if of.terms == 1:
        return array.astype(np.float32)
    halves = array.reshape(*array.shape[:-1], -1, 2, mma_layout.OCTET).astype(np.float64)
    together: np.ndarray = halves[..., 0, :] + halves[..., 1, :] / ptx.LOW_SCALE
    return together.reshape(*array.shape[:-1], -1)
