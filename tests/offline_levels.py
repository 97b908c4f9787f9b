"""What levels launch beside the variants, for `offline_build`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Protocol
from unittest import mock

import numpy as np
from numba import types
from prepared import of_kind

from charcnn.aliases import Array, DType, Kernel, KernelArgument, NumbaType, Stream
from charcnn.compiling.networks import BuiltEncoder, BuiltLevel, record, runnable
from charcnn.compiling.stand_in import Target, kind
from charcnn.config import SMALL
from charcnn.gpu import copy_kernel
from charcnn.gpu.collectives import PROTOCOLS, kernels, pieces, signals, sums
from charcnn.gpu.launch import Grid, title
from charcnn.ops import adamw, maxpool1d_training, moving_average, pushed_sums, shared_norm, shared_softmax
from charcnn.ops.common import columns
from charcnn.ops.common.epilogue_functions import inlined
from charcnn.ops.common.precision import choose
from charcnn.ops.conv1d import products
from charcnn.ops.conv1d.wgmma_sparse.layer import SparseConv
from charcnn.ops.encoder import reduced_rows, scattered_rows
from charcnn.ops.layernorm import training, training_backward
from charcnn.ops.linear import head
from charcnn.ops.local_response_norm_nhwc import inverse_power

FOR_ADA = "l14 fp8"
"""All that this level launches in this precision, for GPUs that have FP8 and no wgmma."""

FOR_TURING = "l14 fp16"
"""All that this level launches in this precision, for GPUs without cp.async."""

FEW_PORTABLE = "few inputs of l21"
"""What few inputs launch there, in all precisions that the GPU has and of which they have kernels of their own."""

OF_LEVELS = FOR_ADA, FOR_TURING, FEW_PORTABLE


def of_level(name: str, target: Target, recorder: Recorder) -> None:
    """Hand over what one of OF_LEVELS launches, with LayerNorm and without."""
    rows, sizes = [tuple(name.split())], [4096]
    if name == FEW_PORTABLE:
        rows = [row for row in runnable(target) if row[0] == "l21" and row[1] != "fp16x3"]  # whose are l14's kernels
        sizes = [1, 16, 64]

    def launched(kernel: Kernel, kinds: tuple[NumbaType, ...]) -> None:
        if kernel is not copy_kernel._copy_kernel:  # which is started for ids and for logits, and so twice
            recorder.launch(kernel, kinds)

    for row in rows:
        recorder.variant = f"{name}, {row[1]}" if name == FEW_PORTABLE else name
        for layernorm in (True, False) if row is rows[0] else (True,):
            record(BuiltLevel(*row, replace(SMALL, layernorm=layernorm)), target, launched, sizes)


ENCODERS = {"encoder fp32": "naive", "encoder fp16": "mma", "encoder bf16": "wgmma", "encoder fp8": "wgmma"}
"""The kernels of `charcnn.ops.encoder` in each precision, by a technique that launches them."""

PERSISTENT = "encoder persistent"
"""The kernel of all blocks of one text, at MiniLM's sizes, in fp16."""

IN_EIGHTHS = "attention.", "conv1d.wgmma.matmul"
"""Of fp8 also those that no variant launches: results are e4m3."""


def of_encoder(name: str, target: Target, recorder: Recorder) -> None:
    """Hand over what one of ENCODERS launches, or PERSISTENT."""
    recorder.variant, precision, technique = name, name.split()[1], ENCODERS.get(name, "persistent")
    wanted: tuple[str, ...] = ("encoder.", *(IN_EIGHTHS if precision == "fp8" else ()))
    sizes = [3, 256] if precision == "fp8" else [3]
    if name == PERSISTENT:
        precision, wanted, sizes = "fp16", ("encoder.persistent.",), [1]

    def launched(kernel: Kernel, kinds: tuple[NumbaType, ...]) -> None:
        if title(kernel).startswith(wanted):
            recorder.launch(kernel, kinds)

    record(BuiltEncoder("bert", technique, precision), target, launched, sizes)


COLLECTIVES = "collectives"
"""The kernels by which two GPUs exchange values, and normalise rows of BERT-base."""


def of_collectives(name: str, target: Target, recorder: Recorder) -> None:
    """Hand over COLLECTIVES."""
    recorder.variant = name
    u32, u64, regions = types.uint32, types.uint64, types.UniTuple(types.uint64, 2)
    kinds = u64, u64, regions, u32, u32, u32, u64, u64
    for protocol in PROTOCOLS:
        for collective, ptx_type in (
            ("all_reduce", "f16"), ("all_reduce", "f32"), ("two_shot", "f16"), ("reduce_scatter", "f16"),
            ("all_gather", "f16"),
        ):  # fmt: skip
            recorder.launch(kernels.make_exchange(collective, ptx_type, 2, protocol, True), kinds)
    more = u32, u32, types.float32, u64, u64
    for warps in reduced_rows.WARPS:
        kernel = reduced_rows.make_kernel("f16", 768, warps, 2, True)
        recorder.launch(kernel, (*[u64] * 5, regions, *more))
    recorder.launch(scattered_rows.make_kernel("f16", 768, 2), (*[u64] * 5, regions, regions, *more))
    words = types.UniTuple(u32, 2)
    for unit in pieces.UNITS:
        recorder.launch(
            pieces.make_kernel(unit, 2, True),
            (u64, u32, regions, words, words, words, words, u32, regions, u32, u64, u64),
        )
    norm, factors = shared_norm.make_kernel(5, inverse_power(0.75, 2.0), 2, True), [types.float32] * 3
    recorder.launch(norm, (u64, u64, regions, *[words] * 3, *[u32] * 10, *factors, regions, u32, u64, u64))
    relu = inlined("relu")
    recorder.launch(kernels.make_exchange("all_reduce", "f16", 2, "lines", True, relu), kinds)
    for of, to in (("f32", "f32"), ("bf16", "f32"), ("f32", "f16"), ("bf16", "bf16")):
        recorder.launch(sums.make_kernel(of, to, 2, True), (u64, regions, u32))
    recorder.launch(shared_softmax.make_kernel(2, True), (u64, u64, regions, u32, u32, u32, u64, u64))
    recorder.launch(signals.signal_kernel, (u64, u32))
    recorder.launch(signals.wait_kernel, (u64, u32, regions, u32, u64, u64))


ADAMW = "adamw"
"""The kernels of a step of the optimiser that clips gradients."""


def of_adamw(name: str, target: Target, recorder: Recorder) -> None:
    """Hand over ADAMW's."""
    recorder.variant, weights = name, np.zeros(4, np.float32)
    with started(recorder, adamw):
        for how in ({}, {"shadow": np.zeros(4, np.uint16)}, {"shadow": np.zeros(4, np.uint16), "ptx_type": "f16"}):
            adamw.AdamW(weights, [adamw.ParameterGroup(4)], clip=1.0, **how).step(weights)


STARTING = columns, products, maxpool1d_training, training, training_backward
"""Modules of variants' kernels that are started by no call."""


@contextmanager
def started(recorder: Recorder, *modules: ModuleType) -> Iterator[None]:
    """Hand over what these start."""

    def start(
        kernel: Kernel, blocks: Grid, threads: int, stream: Stream, *args: KernelArgument, shared: int = 0,
        cluster: int = 1,
    ) -> None:  # fmt: skip
        recorder.launch(kernel, tuple(map(kind, args)))

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, "start", start))
        yield


PUSHED_SUMS = "pushed sums"
"""Of ranks that share a training."""


def of_pushed_sums(name: str, target: Target, recorder: Recorder) -> None:
    """Hand them over, of two ranks."""
    recorder.variant = name
    number, table, partial = np.zeros(1, np.uint32), np.zeros((1, 5), np.uint64), np.zeros((1, 1), np.float32)
    at, rank, limit = np.uint64(0), np.uint32(0), np.float32(1)
    norm = partial, number, table[0], rank, limit, (limit,) * 3, partial[0], partial[0], at, at
    for kernel, args in (
        (pushed_sums.begin_kernel, (number, at, rank, rank, at, at)),
        (pushed_sums.arrived_kernel, (number, at, rank, rank, at, at)),
        (pushed_sums.make_sum_kernel(2), (table, number, at, at, partial, rank, at, at)),
        *((pushed_sums.make_norm_kernel(2, alone), norm) for alone in (False, True)),
    ):
        recorder.launch(kernel, tuple(map(kind, args)))


BETWEEN_PRODUCTS = "between products"
"""What a training step on tensor cores launches between its products, at the sizes of blocks 2 and 6."""


def of_training(name: str, target: Target, recorder: Recorder) -> None:
    """Hand over BETWEEN_PRODUCTS, in both formats."""
    recorder.variant = name
    for ptx_type in ("bf16", "f16"):
        _between_products(recorder, {"ptx_type": ptx_type})


def _between_products(recorder: Recorder, of: dict[str, str]) -> None:

    def zeros(*shape: int, dtype: DType = np.float32) -> Array:
        return np.zeros(shape, dtype)

    def features(*shape: int) -> Array:
        return zeros(*shape, dtype=np.uint16)

    with started(recorder, columns, maxpool1d_training, moving_average, training, training_backward, head):
        y, pooled, place, part = (
            features(2, 330, 256),
            features(2, 112, 256),
            zeros(2, 110, 256, dtype=np.uint8),
            zeros(3, 256),
        )
        maxpool1d_training.pool_forward(y, 330, pooled, place, **of)
        factors = zeros(2)
        maxpool1d_training.pool_backward(pooled, place, factors, y, part, **of)
        columns.column_sums(y, part, **of)
        moving_average.follow(part[0], part[1], 0.5)
        columns.Sums([(part, zeros(256))]).start()
        y, pooled, place = features(2, 104, 256), features(2, 34, 256), zeros(2, 34, 256, dtype=np.uint8)
        gamma, pair = zeros(102, 256), zeros(2, 2)
        training.norm_pool_forward(y, gamma, gamma, factors, pooled, place, pooled, pair, 1e-5, **of)
        partial, inputs = (zeros(*shape) for shape in training_backward.columns_shapes(2, 102, 256))
        training_backward.norm_columns(pooled, place, factors, pooled, gamma, inputs, partial, pair, **of)
        parts = zeros(training_backward.backward_parts(2, 104, 256), 256)
        training_backward.norm_pool_backward(pooled, place, factors, y, pair, pair, gamma, y, parts, **of)
        for classes in (4, 14, 63):
            h, logits, vector = features(2, 1024), zeros(2, classes), zeros(2)
            weights = zeros(1, 1024, classes), zeros(1, classes)
            given = h, weights[0][0], weights[1][0], logits, vector, vector[:1], vector[:1], factors
            for several in (False, True):
                head.head(*given, vector, logits, h, logits, *weights, multi_label=several, **of)


SPARSE = "sparse weights of l22"
"""The layers of CharCNN by 2:4 sparse weights, at the network's sizes, with LayerNorm and without."""


def of_sparse(name: str, target: Target, recorder: Recorder) -> None:
    """Hand over SPARSE."""
    kinds = (7, "pool", 336, 256), (3, "relu", 110, 256), (3, "relu", 106, 256), (3, "stat", 104, 256)
    kinds = *kinds, (3, "pool", 104, 256), (1, "relu", 1, 8704), (1, "relu", 1, 1024)
    recorder.variant = name
    for precision in ("fp16", "fp8"):  # bf16 is one word in fp16's kernels
        for taps, kind_of, length, c_in in kinds:
            weight, bias = np.zeros((taps, c_in, 256), np.float32), np.zeros(256, np.float32)
            conv = of_kind(SparseConv, kind_of, weight, bias, precision=precision)
            start = conv.with_moments if kind_of == "stat" else conv.apply
            start(np.zeros((256, length, c_in), choose(precision).dtype))


LAUNCHED = {
    **dict.fromkeys(OF_LEVELS, of_level), **dict.fromkeys((*ENCODERS, PERSISTENT), of_encoder),
    COLLECTIVES: of_collectives, ADAMW: of_adamw, PUSHED_SUMS: of_pushed_sums, BETWEEN_PRODUCTS: of_training,
    SPARSE: of_sparse,
}  # fmt: skip
"""What hands over each of these."""


class Recorder(Protocol):
    """What keeps launches, by variant."""

    variant: str

    def launch(self, kernel: Kernel, kinds: tuple[NumbaType, ...]) -> None:
        """Keep one."""
