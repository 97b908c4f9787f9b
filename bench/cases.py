"""What each operator is measured on: the shapes of the network's layers, filled with random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from case import Case, Layer
from image_layers import IMAGE_LAYERS

from charcnn.catalog import CHAIN
from charcnn.config import POOL_SIZE, Config
from charcnn.ops.common.arrays import pack
from charcnn.ops.reference import stat

DATA = "standard normal, seed 0; token ids uniform"


class Draw:
    """Random arrays of a config's layers."""

    def __init__(self, config: Config, n: int) -> None:
        self.config, self.n = config, n
        self._random = np.random.default_rng(0)

    def floats(self, *shape: int) -> np.ndarray:
        """Standard normal float32."""
        return self._random.standard_normal(shape, np.float32)

    def bytes(self, *shape: int) -> np.ndarray:
        """Uniform uint8."""
        return self._random.integers(0, 256, shape, np.uint8)

    def product(self, name: str) -> Case:
        """The convolution or linear layer of this name."""
        node = next(node for node in self.config.nodes if node.layer.name == name)
        weight_shape, bias_shape = node.parameters.values()
        weight = self.floats(*weight_shape) / np.float32(np.sqrt(math.prod(weight_shape[1:])))
        x, bias = self.floats(self.n, *node.in_shape), self.floats(*bias_shape)
        return Case((x, weight, bias), flops=self.n * node.flops)

    def conv1d(self, block: int) -> Case:
        """Convolution block 1 to 6."""
        return self.product(f"conv{block}")

    def linear(self, block: int) -> Case:
        """Linear block 1 to 3."""
        return self.product(f"fc{block}")

    def convolved(self, block: int) -> np.ndarray:
        """Features as convolution block 1 to 6 leaves them, (N, C, L)."""
        return self.floats(self.n, self.config.channels, self.config.conv_lengths[block - 1])

    def layernorm(self, block: int) -> Case:
        """LayerNorm of block 1 or 6."""
        x = self.convolved(block)
        return Case((x, self.floats(*x.shape[1:]), self.floats(*x.shape[1:])))

    def layernorm_relu(self, block: int) -> Case:
        """LayerNorm of block 1 or 6, its statistics given."""
        x, gamma, beta = self.layernorm(block).args
        return Case((x, stat(x.astype(np.float64)), gamma, beta), batched=2)

    def pooled(self, case: Case) -> Case:
        """Arguments of a convolution with the pooling that follows."""
        return replace(case, extra=(POOL_SIZE,))

    def channels_last(self, case: Case) -> Case:
        """Arguments on channels-last features and packed weights."""
        turned = tuple(
            np.ascontiguousarray(array.swapaxes(1, 2) if i < case.batched and array.ndim == 3 else array)
            if i < case.batched
            else pack(array)
            if array.ndim > 1
            else array
            for i, array in enumerate(case.args)
        )
        return replace(case, args=turned)

    def chain(self) -> Case:
        """Convolution blocks 3 to 6."""
        blocks = [self.conv1d(block) for block in (3, 4, 5, 6)]
        parameters = [array for case in blocks for array in case.args[1:]]
        return Case((blocks[0].args[0], *parameters), flops=sum(case.flops for case in blocks))

    def two_linears(self) -> Case:
        """Linear blocks 2 and 3."""
        first, second = self.linear(2), self.linear(3)
        return Case((*first.args, *second.args[1:]), flops=first.flops + second.flops)

    def one_hot(self) -> Case:
        """The network's input."""
        c = self.config
        return Case((self._random.integers(0, c.alphabet + 1, (self.n, c.length), np.uint8),), (c.alphabet,))

    def one_hot_conv1d(self) -> Case:
        """Convolution block 1 from token ids."""
        return Case((*self.one_hot().args, *self.conv1d(1).args[1:]))

    def tokens(self) -> Case:
        """The network's input, and the first convolution's parameters, channels last."""
        (ids,), (_, weight, bias) = self.one_hot().args, self.conv1d(1).args
        return Case((ids, pack(weight), bias))

    def tokens_normalised(self) -> Case:
        """Token ids and weights, with statistics and LayerNorm's parameters."""
        c = self.config
        ids, weight, bias = self.tokens().args
        gamma, beta = self.floats(c.conv_lengths[0], c.channels), self.floats(c.conv_lengths[0], c.channels)
        stat = np.abs(self.floats(self.n, 2)).astype(np.float64)
        return Case((ids, stat, weight, bias, gamma, beta), batched=2)

    def collapse(self) -> Case:
        """What fc1 reads."""
        return Case((self.floats(self.n, self.config.channels, self.config.block_lengths[-1]),))

    def text(self, normalised: bool = False) -> Case:
        """Token ids of texts of 128 tokens, and BERT-base's tables, with its LayerNorm's parameters if `normalised`."""
        tokens = self._random.integers(0, 30_522, (self.n, 128), np.int32)
        tables = [self.floats(rows, 768) for rows in (30_522, 512, 2)]
        return Case((tokens, *tables, *(self.floats(768) for _ in range(2 * normalised))))

    def text_backward(self) -> Case:
        """The gradient of what they give, too."""
        case = self.text()
        return Case((self.floats(self.n, 128, 768), *case.args), batched=2)

    def tokens_features(self, added: bool = False) -> Case:
        """What a layer of BERT-base normalises, for texts of 128 tokens."""
        features = [self.floats(self.n, 128, 768) for _ in range(1 + added)]
        return Case((*features, self.floats(768), self.floats(768)), batched=len(features))

    def heads(self) -> Case:
        """Queries, keys and values of a layer of BERT-base, for texts of 128 tokens."""
        shape = _, heads, positions, depth = self.n, 12, 128, 64
        flops = 4 * self.n * heads * positions * positions * depth
        return Case((self.floats(*shape), self.floats(*shape), self.floats(*shape)), batched=3, flops=flops)

    def packed_rows(self) -> Case:
        """BERT-base's heads as rows of a projection, texts one behind another."""
        offsets = np.arange(self.n + 1, dtype=np.int32) * 128
        rows = self.floats(self.n * 128, 3 * 768)
        return Case((rows, offsets), (12,), batched=0, flops=self.heads().flops)

    def backward(self, case: Case, result: tuple[int, ...], flops: int = 2) -> Case:
        """Arguments of a layer's gradient from those of the layer: dy of an input's result, what it read, and a weight.

        Args:
            case: the layer's.
            result: the shape of an input's result.
            flops: of how many products as large as the layer's.
        """
        dy, read = self.floats(self.n, *result), case.args[: case.batched + min(1, len(case.args) - case.batched)]
        return replace(case, args=(dy, *read), batched=1 + case.batched, flops=flops * case.flops)

    def product_backward(self, name: str) -> Case:
        """The gradients of a convolution or linear layer."""
        node = next(node for node in self.config.nodes if node.layer.name == name)
        return self.backward(self.product(name), node.out_shape)

    def pooled_backward(self, block: int) -> Case:
        """What pooling block 1 or 2 reads, and its gradient."""
        case = self.pooled(Case((self.convolved(block),)))
        _, channels, length = case.args[0].shape
        return self.backward(case, (channels, length // POOL_SIZE))

    def tokens_backward(self) -> Case:
        """Token ids, weights, and the gradient of what pooling behind them gives."""
        c = self.config
        channels, taps = max(8, c.channels), c.length - c.conv_lengths[0] + 1
        parameters = self.floats(taps, c.alphabet, channels), self.floats(channels)
        dy = self.floats(self.n, c.conv_lengths[0] // POOL_SIZE, channels)
        return Case((dy, *self.one_hot().args, *parameters), (POOL_SIZE,), batched=2)

    def normalised_backward(self, block: int) -> Case:
        """What LayerNorm of block 1 or 6 reads, its parameters, and the gradient of what pooling behind it gives."""
        length, channels = self.config.conv_lengths[block - 1], max(8, self.config.channels)
        x, dy = self.floats(self.n, length, channels), self.floats(self.n, length // POOL_SIZE, channels)
        return Case((dy, x, self.floats(length, channels), self.floats(length, channels)), (POOL_SIZE,), batched=2)

    def losses(self, backward: bool = False) -> Case:
        """Logits, and a label each as targets."""
        targets = np.eye(self.config.classes, dtype=np.float32)[np.arange(self.n) % self.config.classes]
        case = Case((*self.logits().args, targets), batched=2)
        return self.backward(case, ()) if backward else case

    def logits(self) -> Case:
        """What fc3 leaves."""
        return Case((self.floats(self.n, self.config.classes),))


def _blocks(kind: str, draw: Callable[[Draw, int], Case], *blocks: int) -> tuple[Layer, ...]:
    def layer(block: int) -> Layer:
        return Layer(f"{kind}{block}", lambda d: draw(d, block))

    return tuple(layer(block) for block in blocks)


CONVOLUTIONS = _blocks("conv", Draw.conv1d, 1, 2, 3)
LINEARS = _blocks("fc", Draw.linear, 1, 2)

LAYERS: dict[str, tuple[Layer, ...]] = {
    "one_hot": (Layer("input", Draw.one_hot),),
    "one_hot_conv1d": (Layer("conv1", Draw.one_hot_conv1d),),
    "conv1d": CONVOLUTIONS,
    "conv1d_relu": CONVOLUTIONS[1:],
    "layernorm": _blocks("norm", Draw.layernorm, 1, 6),
    "relu": _blocks("relu", lambda d, block: Case((d.convolved(block),)), 1, 3),
    "maxpool1d": _blocks("pool", lambda d, block: d.pooled(Case((d.convolved(block),))), 1, 2),
    "collapse": (Layer("collapse", Draw.collapse),),
    "linear": LINEARS,
    "linear_relu": LINEARS,
    "conv1d_stat": _blocks("conv", Draw.conv1d, 1, 6),
    "layernorm_relu": _blocks("norm", Draw.layernorm_relu, 1, 6),
    "relu_maxpool1d": _blocks("pool", lambda d, block: d.pooled(Case((d.convolved(block),))), 1, 2),
    "conv1d_relu_maxpool1d": _blocks("conv", lambda d, block: d.pooled(d.conv1d(block)), 2),
    "layernorm_relu_maxpool1d": _blocks("norm", lambda d, block: d.pooled(d.layernorm_relu(block)), 1, 6),
    CHAIN: (Layer("conv3 to conv6", Draw.chain),),
    "linear_relu_linear": (Layer("fc2 and fc3", Draw.two_linears),),
    "one_hot_nlc": (Layer("input", Draw.one_hot),),
    "conv1d_nlc": _blocks("conv", lambda d, block: d.channels_last(d.conv1d(block)), 1, 2, 3),
    "conv1d_relu_nlc": _blocks("conv", lambda d, block: d.channels_last(d.conv1d(block)), 2, 3),
    "conv1d_relu_maxpool1d_nlc": _blocks("conv", lambda d, block: d.channels_last(d.pooled(d.conv1d(block))), 2),
    "conv1d_stat_nlc": _blocks("conv", lambda d, block: d.channels_last(d.conv1d(block)), 1, 6),
    "layernorm_relu_maxpool1d_nlc": _blocks(
        "norm", lambda d, block: d.channels_last(d.pooled(d.layernorm_relu(block))), 1, 6
    ),
    "linear_nlc": _blocks("fc", lambda d, block: d.channels_last(d.linear(block)), 1, 2),
    "linear_relu_nlc": _blocks("fc", lambda d, block: d.channels_last(d.linear(block)), 1, 2),
    "one_hot_conv1d_nlc": (Layer("conv1", Draw.tokens),),
    "one_hot_conv1d_stat_nlc": (Layer("conv1", lambda d: replace(d.tokens(), dtype=np.float64)),),
    "one_hot_conv1d_relu_maxpool1d_nlc": (Layer("conv1 to pool1", lambda d: d.pooled(d.tokens())),),
    "one_hot_conv1d_layernorm_relu_maxpool1d_nlc": (Layer("conv_block_1", lambda d: d.pooled(d.tokens_normalised())),),
    "softmax": (Layer("logits", Draw.logits),),
    "argmax": (Layer("logits", Draw.logits),),
    "embedding": (Layer("BERT-base's", Draw.text),),
    "embedding_rownorm": (Layer("BERT-base's", lambda d: d.text(normalised=True)),),
    "rownorm": (Layer("BERT-base's", Draw.tokens_features),),
    "add_rownorm": (Layer("BERT-base's", lambda d: d.tokens_features(added=True)),),
    "heads_apart": (Layer("BERT-base's", lambda d: Case((d.floats(d.n, 128, 12, 64),))),),
    "add": (Layer("BERT-base's", lambda d: Case(d.tokens_features(added=True).args[:2], batched=2)),),
    "attention": (Layer("BERT-base's", Draw.heads),),
    "packed_attention": (Layer("BERT-base's", Draw.packed_rows),),
    **{
        f"{before}{of}_backward{axes}": _blocks(kind, draw, *blocks)
        for before in ("", "relu_")
        for of, kind, blocks in (("conv1d", "conv", (2, 3)), ("linear", "fc", (1, 2)))
        for axes, draw in (
            ("", lambda d, block, kind=kind: d.product_backward(f"{kind}{block}")),
            ("_nlc", lambda d, block, kind=kind: d.channels_last(d.product_backward(f"{kind}{block}"))),
        )
    },
    "one_hot_conv1d_backward": (Layer("conv1", lambda d: d.backward(d.one_hot_conv1d(), d.convolved(1).shape[1:])),),
    "layernorm_backward": _blocks(
        "norm", lambda d, block: d.backward(d.layernorm(block), d.convolved(block).shape[1:]), 1, 6
    ),
    "relu_backward": _blocks(
        "relu", lambda d, block: d.backward(Case((d.convolved(block),)), d.convolved(block).shape[1:]), 1, 3
    ),
    **dict.fromkeys(("maxpool1d_backward", "relu_maxpool1d_backward"), _blocks("pool", Draw.pooled_backward, 1, 2)),
    "relu_maxpool1d_backward_nlc": _blocks("pool", lambda d, block: d.channels_last(d.pooled_backward(block)), 1, 2),
    "softmax_backward": (Layer("logits", lambda d: d.backward(d.logits(), (d.config.classes,))),),
    "rownorm_backward": (Layer("BERT-base's", lambda d: d.backward(d.tokens_features(), (128, 768))),),
    "add_rownorm_backward": (Layer("BERT-base's", lambda d: d.backward(d.tokens_features(added=True), (128, 768))),),
    "embedding_backward": (Layer("BERT-base's", Draw.text_backward),),
    "attention_backward": (Layer("BERT-base's", lambda d: d.backward(d.heads(), (12, 128, 64), 3)),),
    "one_hot_conv1d_relu_maxpool1d_backward_nlc": (Layer("conv1 to pool1", Draw.tokens_backward),),
    "layernorm_relu_maxpool1d_backward_nlc": _blocks("norm", Draw.normalised_backward, 1, 6),
    "softmax_cross_entropy": (Layer("logits", Draw.losses),),
    "softmax_cross_entropy_backward": (Layer("logits", lambda d: d.losses(backward=True)),),
    **IMAGE_LAYERS,
}
"""Where each operator of the catalogue is measured."""


def case(operator: str, layer: str, config: Config, n: int) -> Case:
    """The arguments of `operator` at the layer, for n inputs."""
    return next(row for row in LAYERS[operator] if row.name == layer).draw(Draw(config, n))


def rate(seconds: float, flops: int, moved: int) -> dict[str, Any]:
    """GFLOP/s where arithmetic is the work, and GB/s of arguments and result."""
    result = {"gb_per_second": moved / seconds / 1e9}
    if flops:
        result["gflop_per_second"] = flops / seconds / 1e9
    return result


def arrays(result: Any) -> tuple[Any, ...]:
    """The arrays of a result: itself, or the two of a pair (y, stat)."""
    return result if isinstance(result, tuple) else (result,)


def error(out: np.ndarray, expected: np.ndarray) -> float:
    """||out - expected|| / ||expected||; 0 where both are all zero, NaN where out holds one."""
    difference = np.linalg.norm(out - expected)
    return float(difference and difference / np.linalg.norm(expected))
