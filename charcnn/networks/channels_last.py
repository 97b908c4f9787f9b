"""Networks of images in CUDA, channels last: on tensor cores (`wgmma`, `mma`), or by Winograd's filtering in float32.

Weights are packed once. What is pointwise is in the last pass of the layer before it; batch normalisation is in its
weights, and ReLU comes before pooling (`calls.simplified`). Features stay in the precision from the pixels to the last
linear layer, whose results are float32. Their channels are padded with zeros to what the next layer reads
(`channels`). A batch's kernels are one CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from charcnn import ops
from charcnn.catalog import network_technique
from charcnn.gpu import device
from charcnn.layers import (
    AvgPool2d,
    Conv2d,
    Flatten,
    GlobalAvgPool2d,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Node,
    Pixels,
    Sigmoid,
    Softmax,
)
from charcnn.layers.windows import Window
from charcnn.model.params import Params
from charcnn.networks import channels as packing
from charcnn.networks.architecture import Architecture, Features
from charcnn.networks.calls import calls, simplified, weights_of
from charcnn.networks.channels import Channels
from charcnn.networks.channels_last_layers import TECHNIQUES, Follows, Layers, ask_ahead
from charcnn.networks.cuda import Operator, Viewed
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.layer import ByBatch, Launched, Layer
from charcnn.ops.common.pixel_tables import ExactTables, exact_tables, pixel_tables
from charcnn.ops.common.precision import choose
from charcnn.ops.conv1d.layers import Cast
from charcnn.ops.image_layers import (
    VectorizedAvgPool2d,
    VectorizedGlobalAvgPool2d,
    VectorizedLocalResponseNorm,
    VectorizedMaxPool2d,
    VectorizedPixels,
)
from charcnn.ops.pixels_to_depth import Blocks, to_depth
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.sequence import Stage, on_gpus
from charcnn.runtime.stream import GpuPipeline


class Chain:
    """A network's layers for one technique, in order: what features are between two of them.

    Args:
        made: the technique's layers.
        nodes, params: of a network that is `simplified`.
        to_depth: whether a first convolution that moves by more than 1 reads blocks of pixels as pixels. None: where
            that takes fewer products, which is no measurement.
    """

    def __init__(
        self, made: Layers, nodes: Sequence[Node], params: Params | dict[str, np.ndarray], to_depth: bool | None = None
    ) -> None:
        self._made, self._nodes, self._params, self._to_depth = made, nodes, params, to_depth
        self.channels, self._area = Channels.grouped(1, 1), 1
        """Places of the channels that came last."""
        self._stored = made.precision
        self._window: Window | None = None
        """Of the convolution that reads blocks of pixels."""
        self._exact: ExactTables | None = None
        """What it reads of them, where that is exact in one term."""
        self._pooled = 0
        """Inputs up to which the convolution that came last pools, too."""

    def stages(self) -> Iterator[Stage]:
        """Each with its layers, weights packed on the current GPU.

        Raises:
            ValueError: a layer is none that the technique has here.
        """
        rest = list(self._nodes)
        while rest:
            node = rest.pop(0)
            if isinstance(node.layer, Flatten):
                continue
            label, epilogue = node.layer.label, ""
            if isinstance(node.layer, Conv2d | Linear) and rest and rest[0].layer.epilogue:
                follows = rest.pop(0).layer
                label, epilogue = f"{label}+{follows.label}", follows.epilogue
            yield label, self._layers(node, epilogue, rest)

    def _halves(self, node: Node) -> bool:
        """Whether places that hold no channel are 1/2 before this node: a sigmoid lies behind the last product."""
        at = next(i for i, one in enumerate(self._nodes) if one is node)
        since = takewhile(lambda one: not isinstance(one.layer, Conv2d | Linear), reversed(self._nodes[:at]))
        return self.channels.width > len(self.channels.places) and any(isinstance(one.layer, Sigmoid) for one in since)

    def _layers(self, node: Node, epilogue: str, rest: Sequence[Node]) -> Sequence[Layer | ByBatch]:
        of: dict[str, Any] = {"precision": self._stored, "octets": self._made.octets}
        match node.layer:
            case Pixels() as pixels:
                return [self._pixels(pixels, rest)]
            case Features(shape):
                self.channels, self._stored = entry(shape[0], rest, self._made), "fp32"
                return [Viewed((*(shape[1:] or (1,)), self.channels.width))]
            case of_value if (
                of_value.epilogue and node is self._nodes[1] and isinstance(self._nodes[0].layer, Features)
            ):
                return [Launched(getattr(ops, f"{of_value.epilogue}_naive"), lambda x: tuple(x.shape))]
            case Conv2d():
                return [*self._cast(node), *self._conv(node, epilogue, rest)]
            case Linear():
                return self._linear(node, epilogue, rest)
            case MaxPool2d(size, stride, padding):
                pooled, self._pooled = self._pooled, 0
                layer = VectorizedMaxPool2d(size, stride=stride, padding=padding, **of)
                return [ByBatch(pooled, [], [layer])] if pooled else [layer]
            case AvgPool2d(size, stride, padding):
                return [VectorizedAvgPool2d(size, stride=stride, padding=padding, **of)]
            case GlobalAvgPool2d():
                return [VectorizedGlobalAvgPool2d(**of)]
            case LocalResponseNorm(size, alpha, beta, k) if not self._halves(node):
                return [VectorizedLocalResponseNorm(size, alpha=alpha, beta=beta, k=k, **of)]
            case Softmax() if self._stored == "fp32":
                (call,) = calls([node], self._params, "naive", fused=False)
                return [Operator(call, "naive")]
        raise ValueError(f"{node.layer.label}: no layer for it here behind the one before")

    def _pixels(self, pixels: Pixels, rest: Sequence[Node]) -> Layer:
        blocks, count = None, pixels.channels
        if isinstance(rest[0].layer, Flatten):  # a row of values, channel after channel, as PyTorch has it
            blocks, count = Blocks.whole(pixels.height, pixels.width), math.prod(rest[0].in_shape)
        elif isinstance(rest[0].layer, Conv2d) and self._as_blocks(rest[0]):
            self._window = window = rest[0].layer.window(rest[0].in_shape)
            blocks, count = Blocks.of(window, pixels.height, pixels.width), count * math.prod(window.stride)
            if self._made.exact(Window(window.in_steps), blocks.counts[1], count, rest[0].layer.channels):
                self._exact = exact_tables(pixels.mean, pixels.std)
        self.channels = Channels.grouped(count, self._made.together)
        tables, precision = pixel_tables(pixels.mean, pixels.std).astype(np.float32), self._stored
        if self._exact is not None:
            tables, precision = self._exact.tables, "fp16"
        return VectorizedPixels(
            tables, pixels.height, pixels.width, channels=self.channels.width, blocks=blocks, precision=precision,
            octets=self._made.octets,
        )  # fmt: skip

    def _cast(self, node: Node) -> list[Layer]:
        """A part's float32 features as a convolution reads them."""
        if self._stored == self._made.precision:
            return []
        self._stored, of = self._made.precision, choose(self._made.precision)
        if of.terms > 1:
            raise ValueError(f"{node.layer.label}: a part that begins with it takes one term, {of.name} has {of.terms}")
        return [Cast(of.name), Viewed((*node.in_shape[1:], self.channels.width), of.dtype)]

    def _as_blocks(self, node: Node) -> bool:
        """Whether a first convolution reads blocks of pixels."""
        of: Any = node.layer
        window = of.window(node.in_shape)
        if window.stride == (1, 1) or window.dilation != (1, 1) or of.groups > 1:
            return False
        if self._to_depth is not None:
            return self._to_depth
        channels, multiple = node.in_shape[0], self._made.together
        fewer = math.prod(window.in_steps) * Channels.grouped(channels * math.prod(window.stride), multiple).width
        return fewer < math.prod(window.kernel) * Channels.grouped(channels, multiple).width

    def _conv(self, node: Node, epilogue: str, rest: Sequence[Node]) -> list[Layer | ByBatch]:
        of, made, inputs = node.layer, self._made, self.channels
        assert isinstance(of, Conv2d)
        (weight, bias), moves, groups = weights_of(node, self._params), of.moves, of.groups
        _, *image = node.in_shape
        if self._exact is not None:
            weight, bias = _of_entries(weight, bias, self._exact)
            moves, self._exact = {**moves, "exact": True}, None
        if self._window is not None:
            image = [*Blocks.of(self._window, *image).counts]
            weight, moves, self._window = (
                to_depth(weight, self._window),
                {**moves, "stride": 1, "padding": 0},
                None,
            )
        reads, mixes = _reader(rest)
        outputs = Channels.grouped(of.channels, made.columns, groups)
        if groups > 1 and not (inputs.split(groups, made.together) and (outputs.together or not mixes)):
            groups = 1  # with zeros between groups
        if groups == 1:
            outputs = Channels.grouped(of.channels, made.together, 1 if mixes else reads)
        weight = packing.filters(weight, of.groups, inputs, outputs, dense=groups == 1)
        float32 = self._writes_float32(rest)
        self.channels = outputs
        pool = rest[0].layer if rest and isinstance(rest[0].layer, MaxPool2d) and rest[0].layer.padding == 0 else None
        follows, moves = Follows((image[0], image[1]), pool), {**moves, "groups": groups}
        layers = made.conv(pack(weight), outputs.spread(bias), epilogue, float32, moves, follows)
        if pool is not None:
            self._pooled = next((layer.most for layer in layers if isinstance(layer, ByBatch)), 0)
        return layers

    def _linear(self, node: Node, epilogue: str, rest: Sequence[Node]) -> list[Layer | ByBatch]:
        of, made, (weight, bias) = node.layer, self._made, weights_of(node, self._params)
        assert isinstance(of, Linear)
        area = weight.shape[1] // len(self.channels.places)
        before: list[Layer] = [] if self._stored == made.precision else [Cast(made.precision)]
        self._stored = made.precision
        float32 = self._writes_float32(rest)
        outputs = Channels.grouped(of.units, 1 if float32 else made.together)
        weight = packing.rows(weight, area, self.channels, outputs)
        self.channels = outputs
        return [*before, *made.linear(weight, outputs.spread(bias), epilogue, float32)]

    def _writes_float32(self, rest: Sequence[Node]) -> bool:
        """Whether what is multiplied here is stored as float32, up to the next that multiplies, if there is any.

        That casts it, where it is a linear layer to which two terms of a pixel are no part of a row.
        """
        after = next((node for node in rest if isinstance(node.layer, Conv2d | Linear)), None)
        cast = self._made.whole_rows and self._made.precision == "fp16x3"
        wide = after is None or (cast and after.flattened is not None and math.prod(after.flattened[1:]) > 1)
        self._stored = "fp32" if wide else self._made.precision
        return wide


def entry(count: int, rest: Sequence[Node], made: Layers) -> Channels:
    """Places of a part's features: padded, but where nothing of the part multiplies or pools them."""
    bare = all(node.layer.epilogue or isinstance(node.layer, Softmax) for node in rest)
    return Channels.grouped(count, 1 if bare else made.together)


class Seam:
    """A part of a network from float32 features to such, channels first on the host, and last on the GPU."""

    def __init__(self, nodes: Sequence[Node], made: Layers) -> None:
        self._in, self._out, self.channels = nodes[0].in_shape, nodes[-1].out_shape, Channels.grouped(1, 1)
        self._before = None
        if isinstance(first := nodes[0].layer, Features):
            self._in, self._before = first.shape, entry(first.shape[0], nodes[1:], made)

    @property
    def length(self) -> int:
        """Bytes an input on the GPU."""
        return math.prod(self._in) if self._before is None else 4 * math.prod(self._in[1:]) * self._before.width

    @property
    def classes(self) -> int:
        """Values of a result there; known when the layers are made."""
        return math.prod(self._out[1:]) * self.channels.width

    def around(self, run: GpuPipeline) -> Callable[[np.ndarray], np.ndarray]:
        """Rows of bytes of features -> features (N, values) float32, both channels first."""

        def made(rows: np.ndarray) -> np.ndarray:
            if self._before is not None:
                x = np.moveaxis(rows.view(np.float32).reshape(len(rows), *self._in), 1, -1)
                rows = np.ascontiguousarray(self._before.spread(x, x.ndim - 1)).reshape(len(rows), -1).view(np.uint8)
            y = run(rows).reshape(len(rows), *self._out[1:], self.channels.width)
            return np.ascontiguousarray(np.moveaxis(y[..., list(self.channels.places)], -1, 1)).reshape(len(rows), -1)

        return made


def _of_entries(weight: np.ndarray, bias: np.ndarray, of: ExactTables) -> tuple[np.ndarray, np.ndarray]:
    """PyTorch's weight (C_out, C_in, KH, KW) and bias for entries in place of what pixels stand for, rounded once."""
    of_pixel = weight.astype(np.float64)
    offset = (of_pixel.sum(axis=(2, 3)) * of.offset).sum(axis=1)
    return (of_pixel * of.factor[:, None, None]).astype(np.float32), (bias + offset).astype(np.float32)


def _reader(rest: Sequence[Node]) -> tuple[int, bool]:
    """Groups of the convolution that reads these channels next, 1 of none; whether neighbours are mixed before that."""
    for node in rest:
        match node.layer:
            case Conv2d(groups=groups):
                return groups, False
            case LocalResponseNorm():
                return 1, True
            case Linear():
                break
    return 1, False


def build(
    technique: str, params: Params, config: Architecture, *, batch: int = 1024, streams: int = 2,
    gpus: int | Sequence[int] | None = None, monitor: Monitor | None = None, precision: str | None = None,
    graph: bool | None = None, to_depth: bool | None = None,
) -> Any:  # fmt: skip
    """Return run: bytes (N, C * H * W) uint8 -> results (N, classes) float32; run.submit, run.on_device: one batch.

    Of a part a function alone, as of `Seam.around`.

    Args:
        precision: one of the technique's; its first where None.
        graph: whether a batch is one CUDA graph, whose layers are not timed apart; None: yes.
        to_depth: as of `Chain`.

    Raises:
        ValueError: the technique cannot compute the network; names those that can.
    """
    row = network_technique(technique)
    nodes, weights = simplified(config, params)
    made = TECHNIQUES[technique](row.precision(precision))

    part = isinstance(config.layers[0], Features) or len(nodes[-1].out_shape) > 1
    seam = Seam(nodes, made)

    def network() -> list[Stage]:  # once a GPU: weights are packed there
        try:
            chain = Chain(made, nodes, weights, to_depth)
            stages = [*chain.stages()]
        except ValueError as error:
            others = row.others(config.name)
            raise ValueError(f"{config.name}: {technique} cannot compute it: {error}; {others} can") from error
        ask_ahead([layer for _, layers in stages for layer in layers])
        seam.channels = chain.channels
        return stages

    graph = row.graphs if graph is None else graph
    graph = graph and not device.SIMULATED
    sizes: Any = seam if part else config
    run = on_gpus(network, sizes, batch=batch, streams=streams, gpus=gpus, monitor=monitor, graph=graph)
    return seam.around(run) if part else run
