"""All blocks of an encoder as one step: few texts in one kernel."""

from __future__ import annotations

from collections.abc import Sequence

from charcnn.aliases import Array
from charcnn.layers import SelfAttention
from charcnn.networks.encoder import EncoderStep
from charcnn.networks.encoder.cpu import Params, product_weights
from charcnn.networks.encoder.packed import PackedBatch
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.encoder.persistent.launch import PersistentBlocks
from charcnn.ops.encoder.persistent.weights import LayerWeights

KINDS = "attend", "project", "add_norm", "project", "project", "add_norm"
"""Steps of a block."""


def prepared(steps: Sequence[EncoderStep], params: Params, of: NumberFormat) -> PersistentBlocks:
    """An encoder's blocks, weights on the current GPU.

    Args:
        steps: all of the encoder, from the embedding to the mean.
        params: its weights.
        of: fp16 or bf16.

    Raises:
        ValueError: its blocks are not alike, or not as BERT's; or no plan computes their sizes.
        DeviceError: the GPU is not Hopper.
    """
    inner = steps[1:-1]
    blocks = [inner[first : first + len(KINDS)] for first in range(0, len(inner), len(KINDS))]
    if len({_form(block) for block in blocks}) != 1 or _form(blocks[0])[0] != KINDS:
        raise ValueError("the persistent kernel computes BERT's blocks, which are all alike: these are not")
    (_, heads, eps), weights = _form(blocks[0]), [_weights(block, params) for block in blocks]
    return PersistentBlocks(weights, heads, eps, of)


def _form(block: Sequence[EncoderStep]) -> tuple[tuple[str, ...], int, float]:
    """Kinds of its steps, none where they are not BERT's; heads, and what variances get."""
    kinds = tuple(step.kind for step in block)
    if kinds != KINDS:
        return (), 0, 0.0
    layer, eps = block[0].layer, block[2].eps
    assert isinstance(layer, SelfAttention)
    plain = not layer.causal and not block[1].epilogue and block[3].epilogue == "gelu" and block[5].eps == eps
    return kinds if plain and not block[4].epilogue else (), layer.heads, eps


def _weights(block: Sequence[EncoderStep], params: Params) -> LayerWeights:
    arrays = []
    for step in block:
        if step.kind == "add_norm":
            arrays += [params[name] for name in step.nodes[0].parameters]
        else:
            arrays += product_weights(step, params)
    return LayerWeights(*arrays)


def start(blocks: PersistentBlocks, batch: PackedBatch, x: Array) -> Array:
    """Start all blocks on rows x (T, H); gives their results."""
    assert batch.keys is not None
    out = batch.kept(x.shape[1], x.dtype)
    blocks.start(x, batch.offsets, out, batch.keys, batch.stream)
    return out
