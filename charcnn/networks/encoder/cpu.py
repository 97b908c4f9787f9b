"""Encoders on the CPU, in float32: plain loops on one core, or matrix products on all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numba import njit

from charcnn import ops
from charcnn.aliases import Function
from charcnn.layers import RowNorm, SelfAttention
from charcnn.model.sequences import lengths
from charcnn.networks.encoder import EncoderNetwork, EncoderStep, steps
from charcnn.ops.common import threads
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.encoder.pool import LEAST
from charcnn.ops.layers import fastest
from charcnn.runtime.monitor import Monitor

Params = Mapping[str, np.ndarray]


@njit(cache=True, nogil=True)
def _pack_kernel(ids, offsets, tokens, places):
    for n in range(ids.shape[0]):
        for s in range(offsets[n + 1] - offsets[n]):
            tokens[offsets[n] + s], places[offsets[n] + s] = ids[n, s], s


@njit(cache=True, nogil=True)
def _split_kernel(qkv, offsets, q, k, v):
    width, depth = q.shape[1] * q.shape[3], q.shape[3]
    for n in range(q.shape[0]):
        for s in range(offsets[n + 1] - offsets[n]):
            row = qkv[offsets[n] + s]
            for c in range(width):
                q[n, c // depth, s, c % depth] = row[c]
                k[n, c // depth, s, c % depth] = row[width + c]
                v[n, c // depth, s, c % depth] = row[2 * width + c]


@njit(cache=True, nogil=True)
def _join_kernel(heads, offsets, rows):
    depth = heads.shape[3]
    for n in range(heads.shape[0]):
        for s in range(offsets[n + 1] - offsets[n]):
            for c in range(rows.shape[1]):
                rows[offsets[n] + s, c] = heads[n, c // depth, s, c % depth]


@njit(cache=True, nogil=True)
def _pool_kernel(x, offsets, normalized, least, y):
    for n in range(y.shape[0]):
        y[n] = 0
        for row in range(offsets[n], offsets[n + 1]):
            for c in range(y.shape[1]):
                y[n, c] += x[row, c]
        y[n] /= np.float32(max(offsets[n + 1] - offsets[n], 1))
        if normalized:
            y[n] /= max(np.sqrt(np.square(y[n]).sum()), np.float32(least))


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
    monitor: Monitor | None = None,
) -> Callable[[np.ndarray], np.ndarray]:  # fmt: skip
    """Return run: bytes (N, 4 S) uint8 of token ids -> embeddings (N, H) float32."""
    monitor = Monitor.of(monitor, batch)
    if technique != "loops":
        threads.layer()
    plan = steps(config.nodes)
    functions = [_function(step, params, technique) for step in plan]

    def forward(ids: np.ndarray, results: np.ndarray) -> None:
        counts = lengths(ids)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        tokens, places = (np.empty((offsets[-1], 1), np.int32) for _ in range(2))
        _pack_kernel(ids, offsets, tokens[:, 0], places[:, 0])
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

    def run(rows: np.ndarray) -> np.ndarray:
        results = np.empty((len(rows), config.classes), np.float32)
        for part in monitor.batches(len(rows), batch):
            forward(rows[part].view(np.int32), results[part])
        return results

    return run


def _function(step: EncoderStep, params: Params, technique: str) -> Function:
    """What computes a step of rows (T, H)."""
    suffix = "loops" if technique == "loops" else "cpu_vector"
    held = [params[name] for node in step.nodes for name in node.parameters]
    match step.layer, step.kind:
        case _, "embed":
            return _embedding(step, held, suffix)
        case SelfAttention() as of, _:
            return _attention(of, _product(step, params, technique), suffix)
        case RowNorm(), _:
            add = getattr(ops, f"add_rownorm_{suffix}")
            return lambda x, residual: add(x, residual, *held, eps=step.eps)
        case _, "pool":
            return _pool_kernel
    return _product(step, params, technique)


def _embedding(step: EncoderStep, held: list[np.ndarray], suffix: str) -> Function:
    """Each row by itself has position 0, and its position's row stands where a type's does: the sum is the same."""
    words, positions, kinds, gamma, beta = held
    rownorm = getattr(ops, f"rownorm_{suffix}")

    def embedded(tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
        rows = ops.embedding_loops(tokens, words, kinds[:1], positions, places)
        return rownorm(rows[:, 0], gamma, beta, eps=step.eps)

    return embedded


def _product(step: EncoderStep, params: Params, technique: str) -> Function:
    weight, bias = product_weights(step, params)
    if technique == "loops":
        after = ops.gelu_loops if step.epilogue else np.asarray
        return lambda x: after(ops.linear_loops(x, weight, bias))
    packed = pack(weight)
    pattern = pattern_of(packed)
    made = fastest(pattern, "fp32", (technique,))(pattern, {"weight": packed, "bias": bias})

    def product(x: np.ndarray) -> np.ndarray:
        y: np.ndarray = made(x, np.empty((len(x), len(bias)), np.float32))
        return ops.gelu_cpu_vector(y, out=y) if step.epilogue else y

    return product


def _attention(of: SelfAttention, product: Function, suffix: str) -> Function:
    attend = getattr(ops, f"attention_{suffix}")

    def attended(x: np.ndarray, offsets: np.ndarray, most: int) -> np.ndarray:
        qkv, (rows, width) = product(x), x.shape
        shape = len(offsets) - 1, of.heads, most, width // of.heads
        q, k, v = (np.zeros(shape, np.float32) for _ in range(3))
        _split_kernel(qkv, offsets, q, k, v)
        found = np.empty((rows, width), np.float32)
        _join_kernel(attend(q, k, v, np.diff(offsets), of.causal), offsets, found)
        return found

    return attended
