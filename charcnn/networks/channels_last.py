"""Networks of images in CUDA, channels last: on tensor cores (`wgmma`, `mma`), or by Winograd's filtering in float32.

What features are between two layers is decided by `rewrites`, before any weight is looked at; then weights are packed,
once a GPU. A batch's kernels are one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numba import cuda

from charcnn import ops
from charcnn.aliases import Record
from charcnn.catalog import network_technique
from charcnn.gpu import device
from charcnn.gpu.collectives import Group
from charcnn.layers import (
    AvgPool2d,
    Conv2d,
    GlobalAvgPool2d,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Pixels,
    Softmax,
)  # fmt: skip
from charcnn.networks import channels as packing
from charcnn.networks.architecture import Architecture
from charcnn.networks.between import BETWEEN, SharedNorm
from charcnn.networks.channels_last_layers import TECHNIQUES, Layers, ask_ahead
from charcnn.networks.cuda import OperatorLayer
from charcnn.networks.exchanges import Exchanges
from charcnn.networks.lowering import Op, Ops, Params, Rewrite, lower, weights_of
from charcnn.networks.lowering.channels_last import (
    choose_by_batch,
    choose_precisions,
    pack_channels,
    pixels_to_blocks,
    takes_epilogue,
)  # fmt: skip
from charcnn.networks.lowering.fusing import SIMPLIFY, absorb_pointwise
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.layer import ByBatch, Launched, PreparedLayer, by_batch
from charcnn.ops.common.pixel_tables import ExactTables, exact_tables, pixel_tables
from charcnn.ops.conv1d.layers import Cast
from charcnn.ops.image_layers import VectorizedImageLayer, VectorizedPixels
from charcnn.ops.pixels_to_depth import to_depth
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.sequence import Stage, on_gpus
from charcnn.runtime.stream import GpuPipeline


def rewrites(
    technique: str, config: Architecture, *, batch: int, precision: str | None = None, to_depth: bool | None = None
) -> tuple[Rewrite, ...]:
    """From the network's layers to what the technique computes, for batches of any size."""
    layers = TECHNIQUES[technique](network_technique(technique).precision(precision))
    blocks = partial(pixels_to_blocks, technique=layers, to_depth=to_depth)
    return *SIMPLIFY, ABSORB, blocks, *decide(layers)


ABSORB = partial(absorb_pointwise, takes=takes_epilogue)


def decide(technique: Layers) -> tuple[Rewrite, ...]:
    """The rewrites that say what features are, once layers have been absorbed."""
    decisions = choose_precisions, pack_channels, choose_by_batch
    return tuple(partial(rewrite, technique=technique) for rewrite in decisions)


def stages(ops: Ops, params: Params, technique: Layers, exchanges: Exchanges | None = None) -> list[Stage]:
    """Each op with its layers, weights packed on the current GPU; `exchanges` makes those between ranks."""
    found = [stage for op in ops for stage in _stages(op, params, technique, exchanges)]
    if exchanges is not None:
        found = exchanges.begun(found)
    ask_ahead([layer for _, layers in found for layer in layers])
    return found


def _stages(op: Op, params: Params, technique: Layers, exchanges: Exchanges | None) -> list[Stage]:
    """Of a choice by batch each of those for many inputs, which the ones for a few stand beside or are left out of."""
    if exchanges is not None and isinstance(op.layer, BETWEEN):
        how: Record = {"octets": technique.octets, "together": technique.together}
        if isinstance(op.layer, SharedNorm):
            how["before"] = VectorizedImageLayer(op.layer.alone, precision=op.reads, octets=technique.octets)
        return [(op.label, [exchanges.last(op, **how)])]
    if not op.many:
        return [(op.label, _layers(op, params, technique))]
    (*before, large), weights = _product(op.many[0], params, technique)
    small, behind = technique.few(op, *weights, large), [_layers(after, params, technique) for after in op.many[1:]]
    every: list[Sequence[PreparedLayer | ByBatch]] = [[*before, large], *behind]
    if small is not None:
        first = by_batch([small], [large], upto=op.most)
        every = [[*before, first], *([by_batch([], layers, upto=op.most)] for layers in behind)]
    return [(after.label, layers) for after, layers in zip(op.many, every, strict=True)]


def _layers(op: Op, params: Params, technique: Layers) -> list[PreparedLayer]:
    how: Record = {"precision": op.reads, "octets": technique.octets}
    match op.layer:
        case Pixels() as pixels:
            return [_pixels(op, pixels, how)]
        case Conv2d() | Linear():
            return _product(op, params, technique)[0]
        case MaxPool2d() | AvgPool2d() | GlobalAvgPool2d() | LocalResponseNorm():
            return [VectorizedImageLayer(op.layer, **how)]
        case Softmax():
            return [OperatorLayer(op, params)]
    return [Launched(getattr(ops, f"{op.layer.epilogue}_naive"), lambda x: tuple(x.shape))]


def _pixels(op: Op, pixels: Pixels, how: Record) -> PreparedLayer:
    tables = pixel_tables(pixels.mean, pixels.std).astype(np.float32)
    if op.exact is not None and (entries := exact_tables(pixels.mean, pixels.std)) is not None:
        tables, how = entries.tables, {**how, "precision": "fp16"}
    size = pixels.height, pixels.width
    return VectorizedPixels(tables, *size, channels=op.outputs.width, blocks=op.blocks, **how)


Packed = tuple[np.ndarray, np.ndarray]


def _product(op: Op, params: Params, technique: Layers) -> tuple[list[PreparedLayer], Packed]:
    """A convolution or a linear layer, behind what casts float32 features for it; and its packed weight and bias."""
    before: list[PreparedLayer] = []
    if op.reads != technique.precision:
        before.append(Cast(technique.precision))
    if isinstance(op.layer, Linear):
        weight, bias = weights_of(op.nodes[0], params)
        weight = packing.rows(weight, weight.shape[1] // len(op.inputs.places), op.inputs, op.outputs)
        weights = weight, op.outputs.spread(bias)
        return [*before, technique.linear(op, *weights)], weights
    weights = _filters(op, params)
    return [technique.conv(op, *weights)], weights


def _filters(op: Op, params: Params) -> Packed:
    """A convolution's weight (KH, KW, C_in / groups, C_out) and bias, for what it reads at its channels' places."""
    node, conv = op.nodes[0], op.layer
    assert isinstance(conv, Conv2d)
    weight, bias = weights_of(node, params)
    if op.exact is not None and (entries := exact_tables(op.exact.mean, op.exact.std)) is not None:
        weight, bias = _of_entries(weight, bias, entries)
    if op.blocks is not None:
        weight = to_depth(weight, conv.window(node.in_shape))
    weight = packing.filters(weight, conv.groups, op.inputs, op.outputs, dense=op.groups == 1)
    return pack(weight), op.outputs.spread(bias)


def _of_entries(weight: np.ndarray, bias: np.ndarray, of: ExactTables) -> tuple[np.ndarray, np.ndarray]:
    """PyTorch's weight (C_out, C_in, KH, KW) and bias for entries in place of what pixels stand for, rounded once."""
    of_pixel = weight.astype(np.float64)
    offset = (of_pixel.sum(axis=(2, 3)) * of.offset).sum(axis=1)
    return (of_pixel * of.factor[:, None, None]).astype(np.float32), (bias + offset).astype(np.float32)


def network(
    technique: str, params: Params, config: Architecture, *, batch: int, precision: str | None = None,
    group: Group | None = None, to_depth: bool | None = None,
) -> tuple[Ops, Callable[[Ops], list[Stage]]]:  # fmt: skip
    """The ops that the technique computes on the current GPU, and what prepares some of them there.

    Arguments and errors are as of `build`.
    """
    row = network_technique(technique)
    layers = TECHNIQUES[technique](row.precision(precision))
    try:
        how: Record = {"batch": batch, "precision": precision, "to_depth": to_depth}
        lowered = lower(config.nodes, rewrites(technique, config, **how))
    except ValueError as error:
        others = row.others(config.name)
        raise ValueError(f"{config.name}: {technique} cannot compute it: {error}; {others} can") from error

    def prepared(ops: Ops) -> list[Stage]:
        return stages(ops, params, layers, None if group is None else Exchanges(group, batch, ops))

    return lowered, prepared


def build(
    technique: str, params: Params, config: Architecture, *, batch: int = 1024, streams: int = 3,
    gpus: int | Sequence[int] | None = None, monitor: Monitor | None = None, precision: str | None = None,
    graph: bool | None = None, to_depth: bool | None = None, group: Group | None = None,
) -> GpuPipeline:  # fmt: skip
    """Return run: bytes (N, C * H * W) uint8 -> results (N, classes) float32; run.submit, run.on_device: one batch.

    Args:
        precision: one of the technique's; its first where None.
        graph: whether a batch is one CUDA graph, whose layers are not timed apart; None: yes.
        to_depth: as of `pixels_to_blocks`.
        group: of the one GPU's rank, whose share the network is: all build and run theirs alike, with streams=1.

    Raises:
        ValueError: the technique cannot compute the network; names those that can.
    """
    first, *_ = device.choose(gpus)
    with cuda.gpus[first]:
        how: Record = {"batch": batch, "precision": precision, "group": group, "to_depth": to_depth}
        lowered, prepared = network(technique, params, config, **how)
    graph = network_technique(technique).graphs if graph is None else graph
    graph = graph and not device.SIMULATED
    return on_gpus(
        lambda: prepared(lowered), config, batch=batch, streams=streams, gpus=gpus, monitor=monitor, graph=graph
    )
