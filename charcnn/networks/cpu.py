"""Networks of images on the CPU: an operator a layer in plain loops, or channels last on all cores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from charcnn.aliases import Array
from charcnn.layers import Conv2d, Linear, Relu, Shape
from charcnn.networks.architecture import Architecture, Features
from charcnn.networks.calls import arguments, launcher
from charcnn.networks.lowering import Op, Params, Rewrite, lower, weights_of
from charcnn.networks.lowering.fusing import SIMPLIFY, absorb_pointwise
from charcnn.ops.common import threads
from charcnn.ops.common.arrays import pack
from charcnn.ops.layers import fastest
from charcnn.runtime.monitor import Monitor

Step = tuple[str, Callable[[np.ndarray, np.ndarray], object], tuple[int, ...]]
"""What its time is counted as; what writes the result of x into out; the shape of an input's result."""


def build(
    technique: str, params: Params, config: Architecture, *, batch: int = 32, gpus: Any = None,
    monitor: Monitor | None = None,
) -> Callable[[np.ndarray], np.ndarray]:  # fmt: skip
    """Return run: bytes (N, C * H * W) uint8 -> results (N, classes) float32; of a part, features as Features says."""
    monitor = Monitor.of(monitor, batch)
    if technique == "loops":
        steps = list(_loops(config, params))
    else:
        threads.layer()
        steps = list(_channels_last(config, params, technique))
    largest = batch * max(math.prod(shape) for *_, shape in steps)
    buffers = [np.empty(largest, np.float32) for _ in range(2)]  # operators read one and write the other

    def forward(x: np.ndarray, results: np.ndarray) -> None:
        for name, function, shape in steps:
            buffers.reverse()
            out = buffers[0][: len(x) * math.prod(shape)].reshape(len(x), *shape)
            with monitor.stage(name):
                function(x, out)
            x = out
        np.copyto(results, x.reshape(results.shape))

    def run(rows: np.ndarray) -> np.ndarray:
        results = np.empty((len(rows), config.classes), np.float32)
        for part in monitor.batches(len(rows), batch):
            forward(rows[part].view(config.dtype), results[part])
        return results

    return run


def _takes(before: Op, op: Op) -> bool:
    """Convolutions and linear layers have ReLU in their last pass."""
    return isinstance(op.layer, Relu) and len(before.nodes) == 1 and isinstance(before.layer, Conv2d | Linear)


def rewrites(technique: str, config: Architecture, **_: Any) -> tuple[Rewrite, ...]:
    """From the network's layers to what the technique computes."""
    return () if technique == "loops" else (*SIMPLIFY, partial(absorb_pointwise, takes=_takes))


def _loops(config: Architecture, params: Params) -> Iterator[Step]:
    for op in lower(config.nodes, rewrites("loops", config)):
        if not isinstance(op.layer, Features):
            yield op.label, _operator(op, params, "loops", shape=op.in_shape), op.out_shape


def _operator(
    op: Op, params: Params, *techniques: str, shape: Shape | None = None, layout: str = "channels_first"
) -> Callable[[Any, Any], object]:
    """The op's operator by the first technique that has one, of x in this shape and layout."""
    function, (given, options) = launcher(op, *techniques, layout=layout), arguments(op, params)

    def operator(x: Array, out: Array) -> object:
        return function(x if shape is None else x.reshape(len(x), *shape), *given, **options, out=out)

    return operator


def _channels_last(config: Architecture, params: Params, technique: str) -> Iterator[Step]:
    """Weights are packed here."""
    lowered = lower(config.nodes, rewrites(technique, config))
    for op in lowered:
        yield op.label, _function(op, params, technique), _last(op.out_shape)
    if len(shape := lowered[-1].out_shape) > 1:  # a part's
        yield "order", lambda x, out: np.copyto(out, np.moveaxis(x, -1, 1)), shape


def _last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """An input's shape, channels last."""
    return (*shape[1:], shape[0])


def _function(op: Op, params: Params, technique: str) -> Callable[[Any, Any], object]:
    node = op.nodes[0]
    match node.layer:
        case Features(shape):
            return lambda x, out: np.copyto(out, np.moveaxis(x.reshape(len(x), *shape), 1, -1))
        case Conv2d() | Linear():
            weight, bias = weights_of(node, params)
            if node.flattened:  # its columns in the order of the features
                weight = weight.reshape(-1, node.flattened[0], math.prod(node.flattened[1:])).swapaxes(1, 2)
                weight = weight.reshape(len(bias), -1)
            pattern, weights = [one.layer for one in op.nodes], {"weight": pack(weight), "bias": bias}
            conv = fastest(pattern, "fp32", (technique, "cpu_gemm"))(pattern, weights)
            rows = isinstance(node.layer, Linear)
            return lambda x, out: conv(x.reshape(len(x), -1) if rows else x, out)
    return _operator(op, params, "cpu_vector", "loops", layout="channels_last")
