"""Encoders on GPUs: rows of tokens that lie packed, one CUDA graph a batch.

In float32, `naive` has an operator a step. `weak` computes what is pointwise in the product's kernel, and softmax in
that of the scores. `strong` has products in tiles of registers, and attention that keeps no scores. `mma` is on tensor
cores, and `wgmma` on Hopper's, where attention in fp16 and bf16 reads a projection's rows where they lie. In fp8
`wgmma` has products in e4m3; attention and what is added up stay fp16. `persistent` computes all blocks of a few texts
in one kernel, and more texts as `wgmma` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
from numba import cuda

from charcnn import ops
from charcnn.aliases import Array
from charcnn.catalog import encoder_technique
from charcnn.gpu import device
from charcnn.gpu import graph as recording
from charcnn.gpu.collectives import Group
from charcnn.gpu.launch import Call
from charcnn.layers import SelfAttention
from charcnn.networks.encoder import EncoderNetwork, EncoderStep, persistent, scales, shares, steps
from charcnn.networks.encoder.cpu import Params, product_weights
from charcnn.networks.encoder.exchange import FROM, Exchange
from charcnn.networks.encoder.packed import PackedBatch
from charcnn.networks.encoder.workers import PackedGraphWorker, PackedSizes, PackedWorker
from charcnn.ops.attention import mma
from charcnn.ops.attention.wgmma_layer import WgmmaAttention
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.conv import PreparedConv
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.layer import ArraySpec, PreparedLayer
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS, TENSOR_PRECISIONS
from charcnn.ops.conv1d.double_buffered_layer import DoubleBufferedConv
from charcnn.ops.conv1d.layers import Cast
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.encoder import packing, pool, rows
from charcnn.ops.encoder.persistent.launch import KeysRoom, PersistentBlocks
from charcnn.ops.encoder.reduced_rows import launch_reduce_add
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.stream import Compute, GpuPipeline, StreamBuffers, StreamWorker

Function = Callable[[PackedBatch, Array, Array], Array]
"""Starts a step on rows, and those that were kept; gives its result."""


class PreparedEncoder:
    """An encoder's steps by a technique, weights on the current GPU.

    Args:
        config: the network.
        params: its weights.
        technique: naive, weak, strong, mma, wgmma or persistent.
        precision: fp32; mma and wgmma also take fp16 and bf16, and tf32 and fp16x3 for products alone, whose features
            stay float32. wgmma also takes fp8 for products alone, with features in fp16 between them. persistent takes
            fp16 and bf16.
        group: the GPUs that share each layer; None where this one has all of it.
        tokenizer: for fp8, as in `build`.

    Raises:
        ValueError: the group's ranks cannot share the layers, or share them in this precision or technique; or fp8
            cannot hold what the network computes; or no plan of the persistent kernel computes it.
    """

    def __init__(
        self, config: EncoderNetwork, params: Params, technique: str, precision: str, group: Group | None = None,
        tokenizer: Path | None = None,
    ) -> None:  # fmt: skip
        self.eighths = precision == "fp8"
        """Whether products multiply e4m3."""
        self.of = TENSOR_PRECISIONS["fp16"] if self.eighths else HALF_PRECISIONS.get(precision, FP32)
        self.technique, self.precision = "wgmma" if technique == "persistent" else technique, precision
        self.steps, self.nbytes, self.group = steps(config.nodes), 0, group
        self.persistent: PersistentBlocks | None = None
        if technique == "persistent":
            if group is not None:
                raise ValueError(f"{technique=}: GPUs that share layers have none")
            self.persistent = persistent.prepared(self.steps, params, self.of)
            self.nbytes += self.persistent.nbytes
        if group is not None:
            shares.check(self.steps, group.ranks)
        if group is not None and self.eighths:
            raise ValueError(f"{precision=}: GPUs that share layers have fp16 and bf16")
        units = [1.0] * len(self.steps)
        if self.eighths:
            units = scales.units(config, self.steps, params, scales.calibration(config, tokenizer))
        self._params, self._products = params, dict[tuple[int, int], PreparedLayer]()
        self.apart = self.technique != "wgmma" or self.of is FP32
        """Whether attention reads heads apart."""
        self.functions = [
            self._function(step, *around) for step, *around in zip(self.steps, [1.0, *units], units, strict=False)
        ]
        self.widest = max(step.units * (3 if step.kind == "attend" else 1) for step in self.steps)
        """Features of a row at most."""

    def room(self, rows: int) -> int:
        """Bytes of the largest array of up to so many rows: features, or sums of parts of a product."""
        sizes = *(1 << k for k in range(rows.bit_length())), rows
        found = [ArraySpec((rows, self.widest), self.of.dtype).nbytes]
        for (_, depth), made in self._products.items():
            # The number of parts follows from a tile, which is chosen by rows.
            found += [-(-rows // n) * array.nbytes for n in sizes for array in made.writes((n, depth))]
        return max(found)

    def planned(self, sizes: PackedSizes) -> Sequence[tuple[EncoderStep, Function]]:
        """What computes a batch of these sizes."""
        found, blocks = list(zip(self.steps, self.functions, strict=True)), self.persistent
        if blocks is None or blocks.plan(sizes.rows, sizes.inputs) is None:
            return found
        (embed, *_, pool), inner = (
            found,
            EncoderStep("blocks", tuple(node for step in self.steps[1:-1] for node in step.nodes)),
        )
        return embed, (inner, lambda batch, x, kept: persistent.start(blocks, batch, x)), pool

    def _held(self, array: np.ndarray) -> Array:
        self.nbytes += array.nbytes
        return device.to_device(np.ascontiguousarray(array, np.float32))

    def _function(self, step: EncoderStep, x_unit: float, unit: float) -> Function:
        names = [name for node in step.nodes for name in node.parameters]
        match step.kind:
            case "embed":
                return self._embedding(step, [self._held(self._params[name]) for name in names], unit)
            case "project":
                return self._product(step, x_unit)
            case "attend":
                return self._attention(step, x_unit, unit)
            case "add_norm":
                return self._add_norm(step, [self._held(self._params[name]) for name in names], unit)
        return self._pool(step)

    def _embedding(self, step: EncoderStep, held: Sequence[Array], unit: float) -> Function:
        words, positions, kinds, gamma, beta = held
        eps, of, units = step.eps, self.of, step.units

        def in_16_bits(batch: PackedBatch, tokens: Array, places: Array) -> Array:
            out = batch.kept(units, of.dtype)
            tables, norm = (words, positions, kinds), (gamma, beta)
            eighths = batch.in_eighths(units, unit)
            rows.launch_embedding(tokens, places, tables, norm, out, eps, of, batch.stream, eighths)
            return out

        def in_float(batch: PackedBatch, tokens: Array, places: Array) -> Array:
            # Each row by itself has position 0, and its position's row stands where a type's does.
            out, apart = batch.kept(units, np.float32), (batch.sizes.rows, 1)
            ids, kind = (one.reshape(apart) for one in (tokens, places))
            if self.technique == "naive":
                y = batch.wide(units, np.float32).reshape((*apart, units))
                ops.embedding_naive(ids, words, kinds[:1], positions, kind, out=y, stream=batch.stream)
                ops.rownorm_naive(y.reshape(out.shape), gamma, beta, eps=eps, out=out, stream=batch.stream)
                return out
            tables, y = (words, kinds[:1], positions), out.reshape((*apart, units))
            norm = {"eps": eps, "out": y, "stream": batch.stream}
            ops.embedding_rownorm_vectorized(ids, *tables, gamma, beta, kind, **norm)
            return out

        return in_float if of is FP32 else in_16_bits

    def _add_norm(self, step: EncoderStep, held: Sequence[Array], unit: float) -> Function:
        (gamma, beta), eps, of, units = held, step.eps, self.of, step.units
        add = ops.add_rownorm_naive if self.technique == "naive" else ops.add_rownorm_vectorized

        def add_norm(batch: PackedBatch, x: Array, kept: Array) -> Array:
            out = batch.kept(units, of.dtype)
            if batch.exchange is not None:
                batch.exchange.add_norm(kept, (gamma, beta), out, eps, batch.stream)
                return out
            if self.group is not None and self.group.in_kernels and of is not FP32:
                launch_reduce_add(self.group, x, kept, gamma, beta, out, eps, of, batch.stream)
                return out
            if self.group is not None:
                self.group.all_reduce(x, x, batch.stream)
            if of is FP32:
                add(x, kept, gamma, beta, eps=eps, out=out, stream=batch.stream)
            else:
                eighths = batch.in_eighths(units, unit)
                rows.launch_add(x, kept, gamma, beta, out, eps, of, batch.stream, eighths)
            return out

        return add_norm

    def _pool(self, step: EncoderStep) -> Function:
        def pooled(batch: PackedBatch, x: Array, kept: Array) -> Array:
            pool.launch(x, batch.offsets, batch.results, len(step.nodes) > 1, self.of, batch.stream)
            return batch.results

        return pooled

    def _product(self, step: EncoderStep, x_unit: float, unit: float = 1.0) -> Function:
        """In attention, values come divided by `unit`."""
        weight, bias = product_weights(step, self._params)
        if unit != 1:
            weight, bias = (
                np.concatenate([*np.split(one, 3)[:2], np.split(one, 3)[2] / unit]) for one in (weight, bias)
            )
        if self.group is not None:
            weight, bias = shares.share(step, weight, bias, self.group.rank, self.group.ranks)
        units, dtype = len(bias), self.of.dtype
        if self.technique in ("naive", "weak"):
            w, b, apart = self._held(weight), self._held(bias), self.technique == "naive" and step.epilogue
            linear = ops.linear_gelu_naive if step.epilogue and not apart else ops.linear_naive

            def plain(batch: PackedBatch, x: Array, kept: Array) -> Array:
                y = linear(x, w, b, out=batch.wide(units, dtype), stream=batch.stream)
                return ops.gelu_naive(y, out=y, stream=batch.stream) if apart else y

            return plain
        packed = pack(weight)
        pattern, weights = pattern_of(packed, step.epilogue), {"weight": packed, "bias": bias}
        cast: PreparedLayer | None = None
        if self.technique == "strong":
            made: PreparedConv = DoubleBufferedConv(pattern, weights)
        else:
            of: Callable[..., PreparedConv] = {"mma": MmaConv, "wgmma": WgmmaConv}[self.technique]
            if self.eighths:
                of = partial(of, x_unit=x_unit)
            results = self.precision if self.eighths and step.epilogue else self.of.name  # which a product reads
            made = of(pattern, weights, precision=self.precision, results=results)
            cast = Cast(self.precision) if self.of is FP32 else None
        self.nbytes += made.nbytes
        self._products[weight.shape] = made

        def prepared(batch: PackedBatch, x: Array, kept: Array) -> Array:
            if batch.exchange is not None and step.kind == "project" and not step.epilogue:
                batch.exchange.product(made, x, batch.stream)
                return x
            if cast is not None:
                x = cast(x.reshape((batch.sizes.rows, 1, x.shape[1])), batch.buffers)
            return made(batch.read(x, kept), batch.buffers).reshape((batch.sizes.rows, units))

        return prepared

    def _attention(self, step: EncoderStep, x_unit: float, unit: float) -> Function:
        layer, product, of, width = step.layer, self._product(step, x_unit, unit), self.of, step.units
        assert isinstance(layer, SelfAttention)
        heads, depth, causal = layer.heads, width // layer.heads, layer.causal
        if self.group is not None:
            heads, width = heads // self.group.ranks, width // self.group.ranks
        if not self.apart:
            results = self.precision if self.eighths else of.name
            attention = WgmmaAttention(heads, depth, causal=causal, precision=of.name, results=results)

            def of_rows(batch: PackedBatch, x: Array, kept: Array) -> Array:
                qkv, out = product(batch, x, kept), batch.wide(width, attention.results.dtype)
                most = batch.sizes.most
                return attention.of_rows(qkv, offsets=batch.offsets, most=most, out=out, stream=batch.stream)

            return of_rows
        launcher = {"naive": ops.attention_naive, "weak": ops.attention_row_blocks}
        attend = launcher.get(self.technique, ops.attention_flash)

        def apart(batch: PackedBatch, x: Array, kept: Array) -> Array:
            qkv = product(batch, x, kept)
            q, k, v, y = batch.apart(heads, depth, of.dtype)
            packing.launch_split(qkv, batch.offsets, q, k, v, batch.stream)
            if of is FP32:
                attend(q, k, v, batch.lengths, causal, out=y, stream=batch.stream)
            else:
                call = Call(y, batch.stream, y.shape, of.dtype, dict.fromkeys("qkv", of.dtype), q=q, k=k, v=v)
                mma.start(call, (q, k, v), y, batch.lengths, causal, of.name)
            out = batch.wide(width, of.dtype)
            packing.launch_join(y, batch.offsets, out, batch.stream)
            return out

        return apart


class Room:
    """What batches of a stream are computed in, all made once.

    Args:
        network: the steps.
        config: their sizes.
        buffers: the stream's, whose two for features hold the widest rows.
        batch: inputs at most.
    """

    def __init__(self, network: PreparedEncoder, config: EncoderNetwork, buffers: StreamBuffers, batch: int) -> None:
        capacity, itemsize = batch * config.tokens, network.of.itemsize
        self._network, self._config, self._buffers = network, config, buffers
        array = buffers.array
        self._offsets, self._lengths = array((batch + 1,), np.int32), array((batch,), np.int32)
        self._tokens, self._places = (array((capacity,), np.int32) for _ in range(2))
        size = capacity * config.classes * itemsize
        self._exchange = None
        group = network.group
        if group is not None and group.in_kernels and network.of is not FP32 and capacity >= FROM:
            self._exchange = Exchange(group, capacity, config.classes, network.of)
            self._narrow = [self._exchange.features(i, capacity) for i in range(2)]
        else:
            self._narrow = [array((size,), np.uint8) for _ in range(2)]
        self._heads = [array((size,), np.uint8) for _ in range(4 * network.apart)]
        self._results = array((batch, config.classes))
        self._eighths = array((capacity * config.classes,), np.uint8) if network.eighths else None
        self._keys = KeysRoom(network.persistent, capacity) if network.persistent else None

    def forward(self, ids: Array, sizes: PackedSizes, *, timed: bool) -> Array:
        """Token ids (n, 4 S) uint8 on the GPU -> embeddings (n, H) float32 there, started on the buffers' stream.

        Its steps are `timed` apart, which no graph can be.
        """
        n, buffers, network = sizes.inputs, self._buffers, self._network
        stage = buffers.stage if timed else nullcontext
        tokens, places = self._tokens[: sizes.rows], self._places[: sizes.rows]
        batch = PackedBatch(
            sizes,
            self._offsets[: n + 1],
            self._lengths[:n],
            buffers,
            list(self._narrow),
            self._heads,
            self._results[:n],
            self._exchange if sizes.rows >= FROM else None,
            self._eighths,
            self._keys,
        )
        with stage("pack"):
            given = ids.view(np.int32).reshape((n, self._config.tokens))
            packing.launch_pack(given, batch.offsets, batch.lengths, tokens, places, buffers.stream)
        x, kept = tokens, places
        for step, function in network.planned(sizes):
            with stage(step.label):
                x = function(batch, x, kept)
            kept = x if step.kind in ("embed", "add_norm") else kept
        return x


def build(
    technique: str, params: Params, config: EncoderNetwork, *, batch: int = 256, streams: int = 2,
    gpus: int | Sequence[int] | None = None, monitor: Monitor | None = None, precision: str | None = None,
    graph: bool | None = None, group: Group | None = None, tokenizer: Path | None = None,
) -> GpuPipeline:  # fmt: skip
    """Return run: bytes (N, 4 S) uint8 of token ids -> embeddings (N, H) float32; run.submit, run.on_device: one batch.

    Args:
        precision: one of the technique's; its first where None.
        graph: whether a batch is one CUDA graph, whose steps are not timed apart; None: yes, but for naive and weak.
        group: of the one GPU's rank, where several share each layer: all build and run the same, with streams=1.

        tokenizer: of fp8, the tokenizer.json by which the sample that ships becomes tokens to calibrate with; random
            ones where None.

    Raises:
        ValueError: the technique cannot compute the network.
        DeviceError: a GPU has less memory free than weights and features need.
    """
    row = encoder_technique(technique)
    graph = (row.graphs if graph is None else graph) and recording.AVAILABLE
    monitor, workers = Monitor.of(monitor, batch), list[StreamWorker]()
    for gpu in device.choose(gpus):
        with cuda.gpus[gpu]:
            network = PreparedEncoder(config, params, technique, row.precision(precision), group, tokenizer)
            compute = Compute()
            monitor.hold(gpu, network.nbytes)
            features = network.room(batch * config.tokens)
            pinned = batch * max(config.length, 4 * config.classes)
            for number in range(streams):
                buffers = StreamBuffers(
                    gpu, number, monitor, pinned=pinned, features=max(features, batch * config.length)
                )
                room = Room(network, config, buffers, batch)
                if group is not None:
                    monitor.hold(gpu, group.nbytes)
                if graph:
                    workers.append(PackedGraphWorker(buffers, room.forward, config.tokens, batch, compute))
                else:
                    workers.append(PackedWorker(buffers, room.forward, config.tokens))
    return GpuPipeline(workers, batch, config.classes, monitor.advance)
