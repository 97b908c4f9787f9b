"""Layers prepared once, then called: `prepare`, which finds the technique that computes a pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn import layers
from charcnn.aliases import Array, Function, Record, Stream
from charcnn.gpu.arrays import check
from charcnn.layers.layer import Layer
from charcnn.layers.windows import pair
from charcnn.ops.common.arrays import host, pack
from charcnn.ops.functions import arrays_of, checked_shape, launch_of, options_of, takes_epilogue
from charcnn.ops.layers import FASTEST, prepared_by
from charcnn.ops.operators import OPERATORS
from charcnn.ops.patterns import fits, operator_name, options
from charcnn.ops.table import VARIANTS, Variant, operator

if TYPE_CHECKING:
    from charcnn.gpu.replay import Replay

FEW = 6
"""Input channels up to which `direct`, and what is like it, takes a pattern without being asked for."""


@dataclass(frozen=True)
class Prepared:
    """A pattern of layers with its weights laid out for one technique: called with features, it gives the result.

    prepared(x, *, out=None, stream=None)

    Args:
        x: float32 (N, ...), what the pattern's first layer reads, in `layout`. On a CPU it is NumPy's; else NumPy's, or
            any array on the device where the weights are.
        out: where to write, on the CPU or GPU as x is; made where None.
        stream: a CUDA stream; the default stream where None. Not on a CPU.

    Returns:
        float32 where x lies. Device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
    """

    pattern: tuple[Layer, ...]
    row: Variant
    weights: tuple[Array, ...]
    """In the order of the operator's parameters, as it takes them; on the GPU where it runs there."""
    options: Record
    apply: Any

    @property
    def technique(self) -> str:
        """Its name in the catalogue."""
        return self.row.technique

    @property
    def precision(self) -> str:
        """What it multiplies."""
        return precision_of(self.row)

    @property
    def layout(self) -> str:
        """channels_first, (N, C, ...), or channels_last, (N, ..., C)."""
        return self.row.layout

    def __call__(self, x: Array, *, out: Array = None, stream: Stream = None) -> Array:
        """See the class."""
        arrays = x, *self.weights
        if self.row.device == "cuda":
            made, replay = self._calls
            done = replay.started(arrays, (), out, stream)
            if done is not None:
                return done
        of = operator(self.row.operator)
        name = "ids" if of.name.startswith("one_hot") else "x"
        how: Record = {"in_place": "x"} if self.row.in_place else {}
        shape = checked_shape(self.row, x, *self.weights, **self.options)
        if self.row.device == "cpu":
            if stream is not None:
                raise ValueError(f"stream is given: the technique {self.technique} runs on the CPU, which has none")
            out = host(out, shape, of.dtypes[0], **how, **{name: x})
            self.apply(out, x)
            return out
        call = made(out, stream, shape, np.dtype(of.dtypes[0]), **how, **{name: x})
        self.apply(call, call.inputs[0])
        replay.keep(call, arrays, (), out)
        return call.result()

    @cached_property
    def _calls(self) -> tuple[Function, Replay]:
        """What makes a call, and the calls that were made."""
        from charcnn.ops.common import calls

        return calls.Call, calls.Replay(in_place=self.row.in_place)


def prepare(
    pattern: Sequence[Layer], weights: Mapping[str, Any] | None = None, technique: str | None = None,
    precision: str | None = None, device: str | None = None, layout: str | None = None,
) -> Prepared:  # fmt: skip
    """Layers of `charcnn.layers` that one operator computes, with their weights laid out once, as a function of x.

    Args:
        pattern: the layers in order, [Conv1d(256, 7), Relu(), MaxPool1d(3)].
        weights: float32 arrays as PyTorch has them, by the names that `Layer.parameters` gives, "weight" and "bias", or
            after the layer's own name where it has one, "conv1.weight". None where no layer has parameters.
        technique: a name of `charcnn.catalog.TECHNIQUES`; None for the first of FASTEST that takes the pattern.
        precision: what is multiplied, a name of `charcnn.catalog.PRECISIONS`; None for "fp32", or for the technique's
            first where it has no fp32. Features and results are float32 in any case.
        device: "cpu" or "cuda"; None for the technique's, or for "cuda" where there is a GPU.
        layout: of x and of the result, "channels_first" or "channels_last"; None for channels first, or for channels
            last where the technique has nothing else.

    Raises:
        ValueError: the pattern, a weight or another argument does not fit. Where a technique does not take the pattern,
            it says which do.
        DeviceError: no usable GPU, or one without what the technique needs.
    """
    pattern = tuple(pattern)
    if not pattern or not all(isinstance(layer, Layer) for layer in pattern):
        raise ValueError(f"pattern={list(pattern)!r}: need at least one layer of charcnn.layers")
    arrays = _arrays(pattern, weights or {})
    row = _choose(pattern, arrays, technique, precision, device, layout)
    if row.layout == "channels_last":
        arrays = tuple(pack(array) if array.ndim > 1 else array for array in arrays)
    given = options(pattern)
    if row.device == "cuda":
        from numba import cuda

        gpu = _gpu()
        gpu.gpu_count()
        if row.tensor_cores:
            gpu.require_tensor_cores(row.technique, hopper=row.hopper, turing=row.turing)
        arrays = tuple(map(gpu.to_device, arrays))
    launch: Any = launch_of(row)
    how: Record = {"precision": row.precision} if row.precision else {}
    if takes_epilogue(launch):
        how["epilogue"] = operator(row.operator).epilogue
    ordered = [given.get(name, default) for name, default in options_of(row)]
    if hasattr(launch, "prepare"):
        apply = launch.prepare(*arrays, *ordered, **how)
        if row.device == "cuda":
            cuda.synchronize()  # calls may come on any stream
    else:
        apply = partial(_launched, launch, (*arrays, *ordered), how)
    return Prepared(pattern, row, arrays, given, apply)


def _launched(launch: Any, arguments: tuple[Any, ...], how: Mapping[str, Any], target: Any, x: Array) -> None:
    launch(target, x, *arguments, **how)


def precision_of(row: Variant) -> str:
    """What the row multiplies."""
    return row.precision or "fp32"


def _arrays(pattern: Sequence[Layer], weights: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """In the order in which operators take them, each of its layer's shape."""
    left, found = dict(weights), []
    for layer in pattern:
        prefix = f"{layer.name}." if layer.name else ""
        for part, need in _needs(layer).items():
            name = prefix + part
            if name not in left:
                if part == "bias" and isinstance(layer, layers.Conv2d) and not layer.bias:
                    found.append(np.zeros(layer.channels, np.float32))
                    continue
                raise ValueError(f"weights has {', '.join(weights) or 'nothing'}: need {name}, of {layer}")
            array = np.asarray(left.pop(name))
            check(name, array)
            sizes = zip(array.shape, need, strict=len(need) == array.ndim) if need else ()
            if (need and len(need) != array.ndim) or any(size not in (of, None) for of, size in sizes):
                shown = ", ".join("any" if size is None else str(size) for size in need or ())
                raise ValueError(f"{name} has shape {array.shape}: need ({shown}), of {layer}")
            found.append(array)
    if left:
        raise ValueError(f"weights has {', '.join(left)}: no layer of the pattern has such a parameter")
    return tuple(found)


def _needs(layer: Layer) -> dict[str, tuple[int | None, ...] | None]:
    """A layer's parameters with their shapes, None for a size that another layer decides, or for all of them."""
    match layer:
        case layers.Conv1d(channels, taps):
            return {"weight": (channels, None, taps), "bias": (channels,)}
        case layers.Conv2d(channels, kernel):
            return {"weight": (channels, None, *pair("kernel_size", kernel)), "bias": (channels,)}
        case layers.Linear(units):
            return {"weight": (units, None), "bias": (units,)}
        case layers.LayerNorm():
            return {"weight": None, "bias": None}
        case layers.BatchNorm2d():
            return dict.fromkeys(("weight", "bias", "running_mean", "running_var"))
        case _:
            return {}


def _choose(
    pattern: Sequence[Layer], arrays: Sequence[np.ndarray], technique: str | None, precision: str | None,
    device: str | None, layout: str | None,
) -> Variant:  # fmt: skip
    """The row that computes the pattern."""
    name, said = operator_name(pattern), f"[{', '.join(map(repr, pattern))}]"
    found = {of.name for of in OPERATORS if of.computes == name and of.shape_check is not None}
    rows = [row for row in VARIANTS if row.operator in found]
    rows = [row for row in rows if arrays_of(row) == 1 + len(arrays)]
    if not rows or not fits(pattern):
        raise ValueError(f"pattern={said}: no operator computes it; each layer, or fewer of them, may have one")
    for argument, value, of in (
        ("technique", technique, lambda row: row.technique),
        ("device", device, lambda row: row.device),
        ("layout", layout, lambda row: row.layout),
        ("precision", precision, precision_of),
    ):
        if value is not None and not (fitting := [row for row in rows if of(row) == value]):
            has = ", ".join(dict.fromkeys(f"{row.technique} ({precision_of(row)}, {row.layout})" for row in rows))
            raise ValueError(f"{argument}={value!r}: nothing takes {said} so; need one of {has}")
        rows = fitting if value is not None else rows
    if technique is None:
        rows = [row for row in rows if row.technique in FASTEST and _takes(row, pattern, arrays)]
        if device is None and {row.device for row in rows} == {"cpu", "cuda"}:
            rows = [row for row in rows if row.device == ("cuda" if _has_gpu() else "cpu")]
        if rows and rows[0].device == "cuda":
            has = _gpu().has_tensor_cores
            rows = [row for row in rows if not row.tensor_cores or has(hopper=row.hopper, turing=row.turing)]
        if not rows:
            raise ValueError(f"pattern={said}: no technique is chosen for it automatically here; name one")
        rows.sort(key=lambda row: FASTEST.index(row.technique))
    if layout is None:
        rows = [row for row in rows if row.layout == "channels_first"] or rows
    if precision is None:
        rows = [row for row in rows if precision_of(row) == "fp32"] or rows
    if rows[0].precision == "fp8":
        raise ValueError("precision='fp8': features need scales; WgmmaConv and MmaConv take them as x_unit")
    return rows[0]


def _takes(row: Variant, pattern: Sequence[Layer], arrays: Sequence[np.ndarray]) -> bool:
    """Whether a technique that nobody asked for takes these sizes, and is meant for them."""
    match pattern[0]:
        case layers.Conv2d(stride=stride, dilation=dilation, groups=groups, kernel_size=kernel):
            plain = groups == 1 and all(pair("stride", one) == (1, 1) for one in (stride, dilation))
            few = groups == 1 and arrays[0].shape[1] <= FEW
            if row.technique == "winograd_rows_cpu":
                return plain and few and 2 <= pair("kernel_size", kernel)[1] <= 5
            if row.technique in ("direct", "cpu_direct"):
                return few
            if row.technique in ("winograd", "winograd_cpu") and (layer := prepared_by(row.technique)):
                return groups == 1 and layer.takes(pattern, precision_of(row))
            return groups == 1 or row.technique in ("naive", "loops", "double_buffered")
    if row.tensor_cores and isinstance(pattern[-1], layers.MaxPool1d):
        return pattern[-1].size == 3
    return True


def _gpu() -> Any:
    from charcnn.gpu import device

    return device


def _has_gpu() -> bool:
    try:
        return bool(_gpu().gpu_count())
    except _gpu().DeviceError:
        return False
