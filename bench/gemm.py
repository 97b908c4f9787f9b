"""Time matrix products on a Hopper GPU, relative to cuBLAS, and the ladder of small kernels that leads there.

It needs PyTorch, which calls cuBLAS: as a @ b, and as a linear layer, whose weight lies transposed. For each shape all
take turns as CUDA graphs, on the same normal numbers. Each result is checked first: sampled rows against float64, all
others against cuBLAS. Float32 kernels by FMA multiply the smallest shape alone, and the ladder's steps, which end in
ReLU, the largest one.

A run of all shapes writes results/MACHINE-gemm.json. Exit status: 0 measured, 1 a result is wrong, 2 unusable machine
or options.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import energy
import numpy as np
import raw
from numba import cuda
from turns import Ready, by_turns

from charcnn import ops
from charcnn.gpu import device, graph
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.layers import Linear
from charcnn.ops.common import tile_choice
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.wgmma.matmul import MatmulTile
from charcnn.ops.conv1d.wgmma.steps.layer import WgmmaStepConv1d


class Shape(NamedTuple):
    """Rows, columns and depth: (M, K) @ (K, N)."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k}"

    @property
    def flop(self) -> int:
        """Of a product."""
        return 2 * self.m * self.n * self.k


SMALLEST, LARGEST = Shape(2048, 2048, 2048), Shape(8192, 8192, 8192)

SHAPES = (
    SMALLEST, Shape(4096, 4096, 4096), LARGEST, Shape(16384, 768, 3072), Shape(16384, 3072, 768),
    Shape(4096, 8704, 1024), Shape(4096, 1024, 8704),
)  # fmt: skip
"""Squares; BERT-base's feed-forward pair; the first fully connected layer of the network, either way."""

TOLERANCES = {"float32": 1e-5, "fp16": 5e-4, "bf16": 4e-3}
"""The greatest ||out - ref|| / ||ref||."""

SAMPLED = 64
"""Rows that are compared with float64."""

CALLS = 1 << 40
"""A graph has so many multiplications, of up to 16 calls, so that a launch costs nothing beside them."""


class Drawn:
    """a and b of a shape on the GPU, by PyTorch, and what is right."""

    def __init__(self, shape: Shape, precision: str) -> None:
        import torch

        self.shape, self.precision = shape, precision
        self.kind = {"fp16": torch.float16, "bf16": torch.bfloat16, "float32": torch.float32}[precision]
        generator = torch.Generator("cuda").manual_seed(0)
        m, n, k = shape
        self.a = torch.randn(m, k, device="cuda", generator=generator).to(self.kind)
        self.b = torch.randn(k, n, device="cuda", generator=generator).to(self.kind)
        self.rows = torch.randint(0, m, (SAMPLED,), device="cuda", generator=generator)
        self.right = self.a[self.rows].double() @ self.b.double()
        self.others = self.a @ self.b

    def check(self, name: str, y: Any, *, rectified: bool = False) -> float:
        """How far a result is off.

        Raises:
            SystemExit: too far.
        """
        right, others = (one.relu() if rectified else one for one in (self.right, self.others))
        error = float((y[self.rows].double() - right).norm() / right.norm())
        off, most = float((y.float() - others.float()).norm() / others.float().norm()), TOLERANCES[self.precision]
        if not (error <= most and off <= 2 * most):
            raise SystemExit(f"gemm: {name} {self.precision}, {self.shape}: off by {error:.2g}, of cuBLAS by {off:.2g}")
        return error

    def ready(self, name: str, start: Callable[..., Any], shape: tuple[int, ...], *, rectified: bool = False) -> Ready:
        """A kernel of ours, checked and recorded. `start` takes x, and `out` and `stream` by name."""
        import torch

        m, n, _ = self.shape
        of = {"fp16": np.float16, "bf16": np.uint16, "float32": np.float32}[self.precision]
        x, y, stream = _array(self.a, of).reshape(shape), device.empty((m, n), of), cuda.stream()
        out = y.reshape((*shape[:-1], n))
        _tensor(y, self.kind).fill_(float("nan"))
        torch.cuda.synchronize()
        start(x, out=out, stream=stream)
        stream.synchronize()
        error = self.check(name, _tensor(y, self.kind), rectified=rectified)

        def calls(on: Any) -> None:
            for _ in range(count):
                start(x, out=out, stream=on)

        count = calls_of(self.shape, self.precision)
        recorded = graph.Graph(calls, stream)
        row = row_of(name, self.precision, error)
        return Ready(
            f"{self.shape} {name} {self.precision}", recorded.launch, count * self.shape.flop, row, stream, items=count
        )


def calls_of(shape: Shape, precision: str) -> int:
    """Products of a graph."""
    return max(1, min(16, CALLS // shape.flop)) if precision != "float32" else 1


def row_of(name: str, precision: str, error: float, **more: Any) -> dict[str, Any]:
    """What the result says of one of them."""
    return {"made": name, "precision": precision, "error": error, **more}


def _array(tensor: Any, of: Any) -> Any:
    """A tensor as our device array, of bf16 the bits."""
    import torch

    return cuda.as_cuda_array(tensor.view(torch.int16) if of is np.uint16 else tensor).view(of)


def _tensor(array: Any, kind: Any) -> Any:
    """Our device array as a tensor."""
    import torch

    return torch.as_tensor(array.view(np.int16) if array.dtype == np.uint16 else array, device="cuda").view(kind)


def own(drawn: Drawn) -> Iterator[Ready]:
    """Our prepared layers, by tensor cores."""
    m, n, k = drawn.shape
    weights = {"weight": _array(drawn.b.float(), np.float32)}
    for name, made in {"mma": MmaConv, "wgmma": WgmmaConv}.items():
        layer = made([Linear(n)], weights, precision=drawn.precision)
        cuda.synchronize()  # the weights are packed: PyTorch may reuse their memory
        yield drawn.ready(name, layer.apply, (m, 1, k))
        if made is WgmmaConv:
            with tile_choice.trying(lambda _, tiles: next(tile for tile in tiles if not isinstance(tile, MatmulTile))):
                ready = drawn.ready("wgmma, as a convolution", layer.apply, (m, 1, k))
            yield ready


def by_fma(drawn: Drawn) -> Iterator[Ready]:
    """Float32's techniques."""
    m, n, k = drawn.shape
    lies = {"linear_naive": drawn.b.t().contiguous(), "linear_nlc_double_buffered": drawn.b}
    bias = device.to_device(np.zeros(n, np.float32))
    for name, weight in lies.items():
        given = {"weight": _array(weight, np.float32), "bias": bias}
        yield drawn.ready(name, partial(getattr(ops, name), **given), (m, k))


def steps(drawn: Drawn) -> Iterator[Ready]:
    """The ladder to wgmma: convolutions of one tap."""
    m, n, k = drawn.shape
    weight, bias = drawn.b.float().cpu().numpy().reshape(1, k, n), np.zeros(n, np.float32)
    for step in WgmmaStepConv1d.steps:
        if step != "pooled":
            yield drawn.ready(step, WgmmaStepConv1d(step, weight, bias), (1, m, k), rectified=True)


def cublas(drawn: Drawn) -> Iterator[Ready]:
    """PyTorch's products, of b as it lies and of b transposed."""
    import torch

    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    y, transposed = torch.empty_like(drawn.others), drawn.b.t().contiguous()
    count = calls_of(drawn.shape, drawn.precision)
    for name, b in {"matmul": drawn.b, "F.linear": transposed.t()}.items():
        call = partial(torch.mm, drawn.a, b, out=y)
        call()
        row = row_of(f"cuBLAS, {name}", drawn.precision, drawn.check(name, y), versions=versions)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            for _ in range(count):
                call()
        flop = count * drawn.shape.flop
        yield Ready(f"{drawn.shape} cuBLAS, {name} {drawn.precision}", recorded.replay, flop, row, items=count)


def measured(shape: Shape, precision: str, meter: energy.Meter) -> list[dict[str, Any]]:
    """A row each, of all that multiply this shape in the precision."""
    drawn = Drawn(shape, precision)
    ready = [*(by_fma(drawn) if precision == "float32" else own(drawn)), *cublas(drawn)]
    if (shape, precision) == (LARGEST, "fp16"):
        ready += steps(drawn)
    rows = by_turns(ready, meter=meter)
    per = calls_of(shape, precision)
    return [{"shape": shape._asdict(), **row, "microseconds": row["microseconds"] / per} for row in rows]


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--shapes", metavar="N", type=int, default=len(SHAPES), help="only the first N (default: all)")
    energy.add_option(parser.add_argument)
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for a run of all")
    options = parser.parse_args(argv)
    if not 1 <= options.shapes <= len(SHAPES):
        parser.error(f"--shapes {options.shapes}: need 1 to {len(SHAPES)}")
    if find_spec("torch") is None:
        print("gemm: PyTorch is not installed: pip install -e '.[torch]'", file=sys.stderr)
        return 2
    try:
        device.choose(1)
        device.require_tensor_cores("wgmma", hopper=True, emulated=False)
    except device.DeviceError as error:
        print(f"gemm: {error}", file=sys.stderr)
        return 2
    cases = [(shape, precision) for shape in SHAPES[: options.shapes] for precision in ("fp16", "bf16")]
    meter = energy.meter(options.joules)
    rows = [row for case in [(SMALLEST, "float32"), *cases] for row in measured(*case, meter)]
    here = machine.describe()
    folder = options.results_dir or (raw.RESULTS if options.shapes == len(SHAPES) else None)
    if folder is not None:
        result = {"gemm": rows, "data": "normal, seed 0", "machine": here, "commit": machine.commit()}
        raw.write(folder / f"{machine.name(here)}-gemm.json", "gemm", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
