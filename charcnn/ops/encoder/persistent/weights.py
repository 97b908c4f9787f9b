"""Weights of an encoder's blocks in the order in which warps multiply by them, as lanes load them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from charcnn.ops.chain.octets import rounded
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.encoder.persistent.plan import COLUMNS, STEP, BlocksPlan


class LayerWeights(NamedTuple):
    """Of a layer, float32, as Hugging Face has them: weights (units, inputs)."""

    qkv: np.ndarray
    """(3 H, H): queries, keys, values."""
    qkv_bias: np.ndarray
    out: np.ndarray
    """(H, H)"""
    out_bias: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    up: np.ndarray
    """(F, H)"""
    up_bias: np.ndarray
    back: np.ndarray
    """(H, F)"""
    back_bias: np.ndarray
    last_gamma: np.ndarray
    last_beta: np.ndarray


def _pieces(weight: np.ndarray) -> np.ndarray:
    """(columns, depth) of 16 bits -> (columns / 8, depth / 32, 256): eight numbers of each lane, for two products."""
    columns, depth = weight.shape
    apart = weight.reshape(columns // COLUMNS, COLUMNS, depth // STEP, 2, 2, 4, 2)  # of a step: product, word, lane
    found: np.ndarray = apart.transpose(0, 2, 1, 5, 3, 4, 6).reshape(columns // COLUMNS, depth // STEP, -1)
    return found


def _by_heads(qkv: np.ndarray, plan: BlocksPlan) -> np.ndarray:
    """(3 H, ...) -> (heads, 3 depth, ...)"""
    apart = qkv.reshape(3, plan.heads, plan.depth, *qkv.shape[1:]).swapaxes(0, 1)
    return apart.reshape(plan.heads, 3 * plan.depth, *qkv.shape[1:])


def packed(layers: Sequence[LayerWeights], plan: BlocksPlan, of: NumberFormat) -> np.ndarray:
    """All weights, uint16: of each block of a cluster and each of its warps what it multiplies by, in order.

    Args:
        layers: the weights, the first layer's first.
        plan: who multiplies.
        of: fp16 or bf16.
    """
    streams: dict[tuple[int, int], list[np.ndarray]] = {
        (rank, warp): [] for rank in range(plan.cluster) for warp in range(plan.warps)
    }
    groups, heads_each, units = plan.warps // plan.halves, plan.heads_each, plan.units
    for layer in layers:
        qkv = _by_heads(rounded(layer.qkv, of), plan)
        out, up, back = (rounded(one, of) for one in (layer.out, layer.up, layer.back))
        for rank in range(plan.cluster):
            mine = slice(rank * units, (rank + 1) * units)
            parts = [(2, up[mine]), (3, back[:, mine])]
            if rank < plan.givers:
                heads = slice(rank * heads_each, (rank + 1) * heads_each)
                columns = slice(heads.start * plan.depth, heads.stop * plan.depth)
                parts = [(0, qkv[heads].reshape(-1, plan.width)), (1, out[:, columns]), *parts]
            for which, weight in parts:
                pieces, (tiles, steps) = _pieces(np.ascontiguousarray(weight)), plan.products[which]
                for warp in range(plan.warps):
                    across, half = (warp, 0) if which % 2 else (warp % groups, warp // groups)
                    own = pieces[across * tiles : (across + 1) * tiles, half * steps : (half + 1) * steps]
                    streams[rank, warp].append(own.swapaxes(0, 1).ravel())
    return np.concatenate([part for stream in streams.values() for part in stream])


def vectors(layers: Sequence[LayerWeights], plan: BlocksPlan) -> np.ndarray:
    """float32 (layers, 9 H + F): biases of heads, one behind the other, of rows with gamma and beta, and of units."""
    return np.stack([
        np.concatenate([
            _by_heads(one.qkv_bias, plan).ravel(), one.out_bias, one.gamma, one.beta, one.back_bias, one.last_gamma,
            one.last_beta, one.up_bias,
        ])
        for one in layers
    ]).astype(np.float32)  # fmt: skip
