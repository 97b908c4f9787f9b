"""Encoders on the CPU: plain loops on one core in float32, or matrix products on all, in float32, bf16 or int8.

In bf16 and int8 products alone are: features between them, attention and normalisation stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from charcnn import ops
from charcnn.aliases import Function
from charcnn.catalog import encoder_technique
from charcnn.layers import RowNorm, SelfAttention
from charcnn.model.sequences import lengths
from charcnn.networks.encoder import EncoderNetwork, EncoderStep, steps
from charcnn.ops.attention.cpu import of_rows
from charcnn.ops.common import threads
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.cpu_dot import DOT_FORMATS
from charcnn.ops.common.cpu_dot_gemm import quantised
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.conv1d.cpu_dot import CpuDotConv
from charcnn.ops.encoder import cpu as rows
from charcnn.ops.encoder.pool import LEAST
from charcnn.ops.layernorm.rownorm import launch_add_cpu
from charcnn.ops.layers import fastest
from charcnn.runtime.monitor import Monitor

Params = Mapping[str, np.ndarray]


def qkv_weights(step: EncoderStep, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """Weight (3 H, H) and bias (3 H,) of the projections of an attention, one behind the other."""
    held = [params[name] for name in step.nodes[0].parameters]
    return np.concatenate(held[::2]), np.concatenate(held[1::2])


def product_weights(step: EncoderStep, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """Weight (units, H) and bias of a step's product."""
    if step.kind == "attend":
        return qkv_weights(step, params)
    weight, bias = (params[name] for name in step.nodes[0].parameters)
    return weight, bias


def build(
    technique: str, params: Params, config: EncoderNetwork, *, batch: int = 32, gpus: Sequence[int] | None = None,
    monitor: Monitor | None = None, precision: str | None = None,
) -> Callable[[np.ndarray], np.ndarray]:  # fmt: skip
    """Return run: bytes (N, 4 S) uint8 of token ids -> embeddings (N, H) float32.

    Args:
        precision: of products, one of the technique's; its first where None.

    Raises:
        ValueError: the technique has it not, or the processor lacks its instructions; int8 cannot hold the weights.
    """
    monitor, precision = Monitor.of(monitor, batch), encoder_technique(technique).precision(precision)
    if technique != "loops":
        threads.layer()
    plan = steps(config.nodes)
    functions = [_function(step, params, technique, precision) for step in plan]

    def forward(ids: np.ndarray, results: np.ndarray) -> None:
        counts = lengths(ids)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        tokens, places = (np.empty((offsets[-1], 1), np.int32) for _ in range(2))
        rows.pack(ids, offsets, tokens[:, 0], places[:, 0])
        x = kept = tokens
        for step, function in zip(plan, functions, strict=True):
            with monitor.stage(step.label):
                match step.kind:
                    case "embed":
                        x = kept = function(tokens, places)
                    case "project":
                        x = function(x)
                    case "attend":
                        x = function(x, offsets, int(counts.max(initial=0)))
                    case "add_norm":
                        x = kept = function(x, kept)
                    case "pool":
                        function(x, offsets, len(step.nodes) > 1, LEAST, results)

    def run(given: np.ndarray) -> np.ndarray:
        results = np.empty((len(given), config.classes), np.float32)
        for part in monitor.batches(len(given), batch):
            forward(given[part].view(np.int32), results[part])
        return results

    return run


def _function(step: EncoderStep, params: Params, technique: str, precision: str) -> Function:
    """What computes a step of rows (T, H)."""
    suffix = "loops" if technique == "loops" else "cpu_vector"
    held = [params[name] for node in step.nodes for name in node.parameters]
    match step.layer, step.kind:
        case _, "embed":
            return _embedding(step, held, suffix)
        case SelfAttention() as of, _:
            return _attention(of, _product(step, params, technique, precision), technique)
        case RowNorm(), _:
            if technique == "loops":
                return lambda x, residual: ops.add_rownorm_loops(x, residual, *held, eps=step.eps)
            gamma, beta = held
            return partial(_add_norm, gamma, beta, step.eps)
        case _, "pool":
            return rows.pool
    return _product(step, params, technique, precision)


def _add_norm(gamma: np.ndarray, beta: np.ndarray, eps: float, x: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """rownorm(x + residual), a new array: the operator's checks take as long as a few rows."""
    y = np.empty_like(x)
    launch_add_cpu(y, x, residual, gamma, beta, eps)
    return y


def _embedding(step: EncoderStep, held: list[np.ndarray], suffix: str) -> Function:
    """Each row by itself has position 0, and its position's row stands where a type's does: the sum is the same."""
    words, positions, kinds, gamma, beta = held
    tables = words, kinds[:1], positions

    def embedded(tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
        if suffix == "loops":
            return ops.rownorm_loops(ops.embedding_loops(tokens, *tables, places)[:, 0], gamma, beta, eps=step.eps)
        return ops.embedding_rownorm_cpu_vector(tokens, *tables, gamma, beta, places, eps=step.eps)[:, 0]

    return embedded


def _product(step: EncoderStep, params: Params, technique: str, precision: str) -> Function:
    weight, bias = product_weights(step, params)
    if technique == "loops":
        after = ops.gelu_loops if step.epilogue else np.asarray
        return lambda x: after(ops.linear_loops(x, weight, bias))
    if precision in DOT_FORMATS:
        return _dot_product(weight, bias, precision, bool(step.epilogue))
    packed = pack(weight)
    pattern = pattern_of(packed, step.epilogue)
    made = fastest(pattern, precision, (technique,))(pattern, {"weight": packed, "bias": bias})
    return lambda x: made(x, np.empty((len(x), len(bias)), np.float32))


def _dot_product(weight: np.ndarray, bias: np.ndarray, precision: str, activated: bool) -> Function:
    """In bf16 or int8, then gelu if `activated`. In int8 each output channel's weights and each row have a scale."""
    packed, of, integer = pack(weight), DOT_FORMATS[precision], precision == "int8"
    offset = bias
    if integer:
        numbers, scale = quantised(weight)
        offset = scale * numbers.sum(axis=1, dtype=np.float32) * np.float32(-rows.ZERO)
    pattern, weights = pattern_of(packed), {"weight": packed, "bias": offset}
    made = CpuDotConv(pattern, weights, precision=precision, results="float32")

    def product(x: np.ndarray) -> np.ndarray:
        narrow: np.ndarray = np.empty(x.shape, of.dtype)
        scales = np.empty(len(x), np.float32)
        threads.launch(*((rows.scale_rows, x, narrow, scales) if integer else (rows.round_rows, x, narrow)))
        y = made(narrow, np.empty((len(x), len(bias)), np.float32))
        if integer:
            threads.launch(rows.from_u8, y, scales, bias, activated)
        return ops.gelu_cpu_vector(y, out=y) if activated and not integer else y

    return product


def _attention(of: SelfAttention, product: Function, technique: str) -> Function:
    def of_heads(x: np.ndarray, offsets: np.ndarray, most: int) -> np.ndarray:
        qkv, (count, width) = product(x), x.shape
        shape = len(offsets) - 1, of.heads, most, width // of.heads
        q, k, v = (np.zeros(shape, np.float32) for _ in range(3))
        rows.split(qkv, offsets, q, k, v)
        found = np.empty((count, width), np.float32)
        rows.join(ops.attention_loops(q, k, v, np.diff(offsets), of.causal), offsets, found)
        return found

    def in_place(x: np.ndarray, offsets: np.ndarray, most: int) -> np.ndarray:
        found = np.empty(x.shape, np.float32)
        of_rows(product(x), offsets, of.heads, of.causal, found)
        return found

    return of_heads if technique == "loops" else in_place
