"""Energy of products of Hopper's tensor cores, dense and 2:4 sparse: W, pJ an operation, and how many a second.

Each multiprocessor multiplies what lies in its shared memory; nothing is copied meanwhile. First products are compared
with NumPy, exactly, sparse ones with all six pairs of four at each place. "dense, zeros" are the sparse weights with
their zeros in place. Operations are those that are executed: a sparse product has half as many. Rounds take turns.

It needs a Hopper GPU, and adds to results/designs/MACHINE-sparse.json; with --zeros, dense products in each type, by
share of zeros in the features, to results/MACHINE-costs.json.

Exit status: 0 measured, 1 a product is wrong, 2 unusable machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import energy
import numpy as np
import raw
from numba import cuda, float32, types

from charcnn.aliases import Array, Kernel
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.gpu.ptx.simulated import E4M3
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.ops.common.sparse import ROWS, compressed, largest, swizzled

STAGES, THREADS = 4, 128
"""Tiles of 128 bytes of depth that a warpgroup multiplies by turns; its threads."""

WEIGHTS = ("dense", "dense, zeros", "sparse")

FEATURES = ("normal", "relu")

COLUMNS, WARPGROUPS = (128, 256), (1, 2)

ZEROS = {"no zeros": 0.0, "25 % zeros": 0.25, "50 % zeros": 0.5, "75 % zeros": 0.75}
"""Features of --zeros: the share of zeros."""

DEPTH, WORDS = {"f16": 64, "bf16": 64, "tf32": 32, "e4m3": 128}, {"f16": 1, "bf16": 1, "tf32": 1, "e4m3": 2}
"""Numbers of 128 bytes, and words of metadata a thread for them; TF32 has none, as its products are all dense."""

ROUNDS, WARM = 2, 0.2

MILLISECONDS = 20
"""That a kernel is to take."""

TRIALS = 5
"""Calls by the fastest of which that is set: the first compiles, and finds a GPU whose clock is low."""


class Product(NamedTuple):
    """What is multiplied."""

    ptx_type: str
    weights: str
    features: str
    columns: int
    warpgroups: int

    @property
    def operations(self) -> int:
        """Of a multiprocessor that goes through its stages once."""
        dense = 2 * self.warpgroups * ROWS * self.columns * STAGES * DEPTH[self.ptx_type]
        return dense // 2 if self.weights == "sparse" else dense


def products() -> list[Product]:
    """All that are measured."""
    halves = product(["f16"], WEIGHTS, FEATURES, COLUMNS, WARPGROUPS)
    eighths = product(["e4m3"], ("dense", "sparse"), FEATURES, COLUMNS[-1:], WARPGROUPS[-1:])
    return [Product(*one) for one in (*halves, *eighths)]


def with_zeros() -> list[Product]:
    """All that --zeros measures."""
    return [Product(*one) for one in product(DEPTH, WEIGHTS[:1], ZEROS, COLUMNS[-1:], WARPGROUPS[-1:])]


@cache
def make_kernel(ptx_type: str, sparse: bool, columns: int) -> Kernel:
    """The kernel (a, b, metadata, d, loops): d = loops a b^T, by blocks of whole warpgroups, which all do the same.

    a and b are uint32, tiles as they lie in shared memory, those of the first warpgroup first. metadata is uint32
    (warpgroups, STAGES, 128, words), and d is float32 (warpgroups * 64, columns).
    """
    acc_size, stages, words = columns // 2, STAGES, WORDS[ptx_type]
    a_bytes, b_bytes = uint32(ROWS * (64 if sparse else 128)), uint32(columns * 128)
    fence, wait_one, wait_all = ptx.wgmma_fence, ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    if sparse:
        multiply_sparse = ptx.wgmma_sparse(ptx_type, columns)

        @cuda.jit(device=True, forceinline=True)
        def multiply(acc, a, b, metadata):
            fence()
            multiply_sparse(acc, uint32(a >> 4 | ptx.DESCRIPTOR_LOW), uint32(b >> 4 | ptx.DESCRIPTOR_LOW), metadata)
            wait_one()

    else:
        multiply_dense = ptx.wgmma(ptx_type, columns)

        @cuda.jit(device=True, forceinline=True)
        def multiply(acc, a, b, metadata):
            fence()
            multiply_dense(acc, uint32(a >> 4 | ptx.DESCRIPTOR_LOW), uint32(b >> 4 | ptx.DESCRIPTOR_LOW))
            wait_one()

    @jit(launch_bounds=(2 * THREADS, 1))
    def kernel(a, b, metadata, d, loops):
        smem = cuda.shared.array(0, types.uint32, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        m0, m1 = cuda.local.array(words, types.uint32), cuda.local.array(words, types.uint32)
        m2, m3 = cuda.local.array(words, types.uint32), cuda.local.array(words, types.uint32)
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        warpgroup = thread >> 7
        for i in range(thread, a.size, cuda.blockDim.x):
            smem[i] = a[i]
        for i in range(thread, b.size, cuda.blockDim.x):
            smem[a.size + i] = b[i]
        for i in range(words):
            m0[i] = metadata[warpgroup, 0, thread & 127, i]
            m1[i] = metadata[warpgroup, 1, thread & 127, i]
            m2[i] = metadata[warpgroup, 2, thread & 127, i]
            m3[i] = metadata[warpgroup, 3, thread & 127, i]
        for i in range(acc_size):
            acc[i] = 0
        ptx.fence_proxy_async()
        cuda.syncthreads()
        a0, b0 = uint32(base + warpgroup * stages * a_bytes), uint32(base + 4 * a.size)
        for _ in range(loops):
            multiply(acc, a0, b0, m0)
            multiply(acc, uint32(a0 + a_bytes), uint32(b0 + b_bytes), m1)
            multiply(acc, uint32(a0 + 2 * a_bytes), uint32(b0 + 2 * b_bytes), m2)
            multiply(acc, uint32(a0 + 3 * a_bytes), uint32(b0 + 3 * b_bytes), m3)
        wait_all()
        if cuda.blockIdx.x == 0:
            row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
            for k in range(acc_size // 4):
                d[row, 8 * k + column] = acc[4 * k]
                d[row, 8 * k + column + 1] = acc[4 * k + 1]
                d[row + 8, 8 * k + column] = acc[4 * k + 2]
                d[row + 8, 8 * k + column + 1] = acc[4 * k + 3]

    return kernel


def stages(matrix: np.ndarray) -> np.ndarray:
    """(rows, STAGES * depth) as tiles (STAGES, rows, depth)."""
    return matrix.reshape(len(matrix), STAGES, -1).transpose(1, 0, 2)


class Operands:
    """A product's operands on the GPU, and where its result goes.

    Args:
        ptx_type: of both.
        sparse: whether a is to be compressed.
        a: (64 * warpgroups, STAGES * DEPTH), float16 or bits of e4m3 as uint8.
        b: (columns, STAGES * DEPTH), likewise.
    """

    def __init__(self, ptx_type: str, sparse: bool, a: np.ndarray, b: np.ndarray) -> None:
        self.warpgroups = len(a) // ROWS
        metadata = np.zeros((self.warpgroups, STAGES, THREADS, WORDS[ptx_type]), np.uint32)
        if sparse:
            kept, metadata = compressed(a)
        else:
            kept = np.stack([stages(one) for one in a.reshape(self.warpgroups, ROWS, -1)])
        self.d = device.to_device(np.zeros((len(a), len(b)), np.float32))
        laid = swizzled(kept), swizzled(stages(b))
        self.shared = sum(one.nbytes for one in laid)
        self.args: list[Array] = [*map(device.to_device, laid), device.to_device(metadata), self.d]
        self.kernel = make_kernel(ptx_type, sparse, len(b))

    def start(self, blocks: int, loops: int) -> None:
        """So many blocks, each of which goes so often through its stages; not waited for."""
        threads = THREADS * self.warpgroups
        start(self.kernel, blocks, threads, device.as_stream(None), *self.args, loops, shared=self.shared)


def numbers(values: np.ndarray, ptx_type: str) -> np.ndarray:
    """Rounded to nearest: float16, bf16's bits as uint16, TF32 as float32, or e4m3's bits as uint8."""
    if ptx_type == "f16":
        return values.astype(np.float16)
    if ptx_type in ("bf16", "tf32"):
        dropped = np.uint32(16 if ptx_type == "bf16" else 13)
        kept = (values.astype(np.float32).view(np.uint32) + (np.uint32(1) << dropped - np.uint32(1))) >> dropped
        return kept.astype(np.uint16) if ptx_type == "bf16" else (kept << dropped).view(np.float32)
    codes = np.argsort(E4M3)[:-2]  # without its two NaN
    codes = codes[codes != 0x80]  # -0
    sizes = E4M3[codes]
    return codes[np.searchsorted((sizes[1:] + sizes[:-1]) / 2, values)].astype(np.uint8)


def paired(shape: tuple[int, int], turn: int, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers, two of each four: by six turns each place has each of the six pairs."""
    rows, depth = shape
    pair = (np.arange(rows)[:, None] + np.arange(depth // 4) + turn) % 6
    kept = np.zeros((6, 4), bool)
    for of, places in zip(kept, combinations(range(4), 2), strict=True):
        of[list(places)] = True
    sizes = rng.integers(1, 4, shape) * rng.choice([-1, 1], shape)
    return np.where(kept[pair].reshape(shape), sizes, 0)


def wrong(
    ptx_type: str, columns: int, warpgroups: int = 2, turns: Sequence[int] = range(6), sparse: bool = True
) -> list[dict[str, Any]]:
    """The turns of `paired` whose product differs from NumPy's, with how many sums do; empty where all agree."""
    found, rng = [], np.random.default_rng(0)
    for turn in turns:
        a = paired((ROWS * warpgroups, STAGES * DEPTH[ptx_type]), turn, rng)
        b = rng.integers(-3, 4, (columns, a.shape[1]))
        operands = Operands(ptx_type, sparse, numbers(a, ptx_type), numbers(b, ptx_type))
        operands.start(1, 1)
        bad = operands.d.copy_to_host() != a @ b.T
        if bad.any():
            found.append({"type": ptx_type, "columns": columns, "turn": turn, "wrong": int(bad.sum()), "of": bad.size})
    return found


def features_of(kind: str, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Values as they are, after ReLU, or with a share of zeros at random places."""
    if kind == "relu":
        return np.maximum(values, 0)
    return np.where(rng.random(values.shape) < ZEROS.get(kind, 0), 0, values)


def operands_of(one: Product) -> Operands:
    """Standard normal numbers, seed 0; sparse weights keep the two largest of four."""
    rng = np.random.default_rng(0)
    depth = STAGES * DEPTH[one.ptx_type]
    a, b = (rng.standard_normal((rows, depth)) for rows in (ROWS * one.warpgroups, one.columns))
    a = a if one.weights == "dense" else np.where(largest(a), a, 0)
    b = features_of(one.features, b, rng)
    return Operands(one.ptx_type, one.weights == "sparse", numbers(a, one.ptx_type), numbers(b, one.ptx_type))


class Measured:
    """A product's runs."""

    def __init__(self, one: Product) -> None:
        self.product, self.operands, self.loops = one, operands_of(one), 1000
        self.rounds: list[dict[str, float]] = []
        self.loops = max(1, int(self.loops * MILLISECONDS / min(self._milliseconds() for _ in range(TRIALS))))

    def _milliseconds(self) -> float:
        """Of a call, by the GPU's clock."""
        begin, end = cuda.event(), cuda.event()
        begin.record()
        self.start()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def start(self) -> Callable[[], object]:
        """All multiprocessors; gives what waits for them."""
        self.operands.start(device.multiprocessors(), self.loops)
        return energy.marked()

    def measure(self, counter: energy.Counter, seconds: float) -> None:
        """A round."""
        drawn = energy.drawn(self.start, counter, warm=WARM, seconds=seconds)
        executed = drawn.calls * self.loops * device.multiprocessors() * self.product.operations
        self.rounds.append({
            "TFLOP/s": executed / drawn.seconds / 1e12,
            "W": drawn.joules / drawn.seconds,
            "pJ": drawn.joules / executed * 1e12,
            "MHz": drawn.mhz,
        })  # fmt: skip

    def row(self) -> dict[str, Any]:
        """Means of the rounds, and all of them; of a sparse product also the rate as a dense one's would be."""
        means = {name: float(np.mean([one[name] for one in self.rounds])) for name in self.rounds[0]}
        dense = means["TFLOP/s"] * (2 if self.product.weights == "sparse" else 1)
        return {**self.product._asdict(), **means, "dense TFLOP/s": dense, "rounds": self.rounds}


def main() -> int:
    """Check, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    energy.add_option(parser.add_argument)
    where = "default: bench/results/designs, with --zeros bench/results"
    parser.add_argument("--results-dir", metavar="DIR", type=Path, help=where)
    parser.add_argument("--check", action="store_true", help="only compare products with NumPy")
    parser.add_argument("--zeros", action="store_true", help="measure dense products in each type, by share of zeros")
    options = parser.parse_args()
    if device.SIMULATED or not device.has_tensor_cores(hopper=True):
        print("tensor_energy: needs a Hopper GPU", file=sys.stderr)
        return 2
    bad = [row for ptx_type in DEPTH for row in wrong(ptx_type, 256, turns=range(1), sparse=False)]
    for ptx_type, columns in () if options.zeros else (("f16", 128), ("f16", 256), ("e4m3", 256)):
        bad += wrong(ptx_type, columns)
    for row in bad:
        print("tensor_energy: wrong:", row, file=sys.stderr, flush=True)
    if bad:
        return 1
    print("products are NumPy's", flush=True)
    if options.check or not options.joules:
        return 0
    meter = energy.meter(options.joules)
    counter, measured = energy.Counter(), [Measured(one) for one in (with_zeros() if options.zeros else products())]
    for _ in range(ROUNDS):
        for one in measured:
            one.measure(counter, options.joules)
            print(*one.product, {name: round(value, 3) for name, value in one.rounds[-1].items()}, flush=True)
    here = machine.describe()
    part = {
        "machine": here,
        "commit": machine.commit(),
        "idle_watts": meter.idle,
        "rows": [one.row() for one in measured],
    }
    if options.zeros:
        raw.add(
            (options.results_dir or raw.RESULTS) / f"{machine.name(here)}-costs.json", "costs", {"operations": part}
        )
    else:
        folder = options.results_dir or raw.RESULTS / "designs"
        raw.add(folder / f"{machine.name(here)}-sparse.json", "sparse", {"products": part})
    return 0


if __name__ == "__main__":
    sys.exit(main())
