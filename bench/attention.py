"""Time attention by every technique on a GPU, relative to the backends of PyTorch's scaled_dot_product_attention.

It needs a GPU and PyTorch. For each shape all take turns, from q, k, v on the GPU to results there. Ours are CUDA
graphs on arrays of the precision. PyTorch's FlashAttention-2, cuDNN and memory-efficient backends get the same numbers.
The first and the last input are checked against float64 first, all others for finite values. TFLOP/s count 4 S S d a
head.

A run of all shapes writes results/MACHINE-attention.json. Exit status: 0 measured, 1 a result is wrong, 2 unusable
machine or options.
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
from charcnn.gpu.launch import Call
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.ops.attention import mma
from charcnn.ops.attention.wgmma_layer import WgmmaAttention


class Shape(NamedTuple):
    """Inputs, heads, positions and features of a head."""

    n: int
    heads: int
    positions: int
    depth: int

    def __str__(self) -> str:
        return f"S = {self.positions:,}, N = {self.n}, {self.heads} heads of {self.depth}"

    @property
    def flop(self) -> int:
        """Of a call: products and sums."""
        return 4 * self.n * self.heads * self.positions**2 * self.depth


SHAPES = (
    Shape(256, 12, 128, 64), Shape(64, 12, 512, 64), Shape(32, 12, 1024, 64), Shape(2, 16, 4096, 128),
    Shape(256, 12, 128, 32), Shape(64, 12, 512, 32),
)  # fmt: skip
"""BERT-base's heads at three lengths, long texts, and MiniLM's heads."""

LADDER = ("naive", "row_blocks", "flash")
"""Techniques in float32, by FMA."""

SLOW = 2048
"""Positions from which those are left out: their scores would take gigabytes, or seconds."""

TOLERANCES = {"float32": 2e-6, "fp16": 1e-3, "bf16": 6e-3}
"""The greatest ||out - ref|| / ||ref||."""

GPU = "cuda"
"""Where PyTorch draws, as it calls that."""

BACKENDS = {
    "FLASH_ATTENTION": "FlashAttention-2",
    "CUDNN_ATTENTION": "cuDNN",
    "EFFICIENT_ATTENTION": "memory-efficient",
}


class Drawn:
    """q, k, v of a shape, with PyTorch on the GPU, and the right result of the first and the last input."""

    def __init__(self, shape: Shape, precision: str) -> None:
        import torch

        self.shape, self.precision = shape, precision
        self.kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
        generator = torch.Generator(GPU).manual_seed(0)
        sizes = shape.n, shape.heads, shape.positions, shape.depth
        self.qkv = [torch.randn(*sizes, device=GPU, generator=generator).to(self.kind) for _ in range(3)]
        ends = [[one[i].double() for one in self.qkv] for i in (0, -1)]
        scores = [(q @ k.transpose(1, 2) / shape.depth**0.5).softmax(dim=-1) for q, k, _ in ends]
        self.right = torch.stack([weights @ v for weights, (*_, v) in zip(scores, ends, strict=True)])

    def check(self, name: str, y: Any, precision: str) -> float:
        """How far a result is off.

        Raises:
            SystemExit: too far, or not finite.
        """
        error = float((y[[0, -1]].double() - self.right).norm() / self.right.norm())
        if not (error <= TOLERANCES[precision] and bool(y.isfinite().all())):
            raise SystemExit(f"attention: {name} {precision}, {self.shape}: off by {error:.2g}")
        return error

    def arrays(self, of: Any) -> list[Any]:
        """q, k, v as our device arrays; bf16 as the bits of it."""
        import torch

        bits = torch.uint16 if of is np.uint16 else torch.float32 if of is np.float32 else self.kind
        given = [one.view(bits) if of is np.uint16 else one.to(bits) for one in self.qkv]
        return [device.to_device(one.cpu().numpy()) for one in given]


def own(drawn: Drawn) -> Iterator[Ready]:
    """Our techniques: float32's beside fp16's, those of tensor cores in the precision."""
    import torch

    shape, precision = drawn.shape, drawn.precision

    def ready(name: str, kind: str, start: Callable[..., Any], out: Any) -> Ready:
        stream = cuda.stream()
        start(stream=stream)
        stream.synchronize()
        call = graph.Graph(lambda on: start(stream=on), stream).launch
        y = torch.as_tensor(device.to_host(out))
        y = (y.view(torch.bfloat16) if kind == "bf16" else y).to(GPU)
        row = row_of(name, kind, drawn.check(name, y, kind))
        return Ready(f"{name} {kind}", call, shape.flop, row, stream, items=shape.n)

    if precision == "fp16" and shape.positions < SLOW:
        given = drawn.arrays(np.float32)
        for technique in LADDER:
            out = device.empty(given[0].shape, np.float32)
            yield ready(technique, "float32", partial(getattr(ops, f"attention_{technique}"), *given, out=out), out)
    of = np.uint16 if precision == "bf16" else np.float16
    given = drawn.arrays(of)
    out = device.empty(given[0].shape, of)
    yield ready("mma", precision, partial(by_mma, given, out, precision), out)
    if device.has_capability((9, 0)):
        layer, out = WgmmaAttention(shape.heads, shape.depth, precision=precision), device.empty(given[0].shape, of)
        yield ready("wgmma", precision, partial(layer.apply, *given, out=out), out)


def by_mma(given: Sequence[Any], out: Any, precision: str, stream: Any = None) -> None:
    """A call of `mma` on arrays of the precision."""
    named = dict(zip("qkv", given, strict=True))
    call = Call(out, stream, out.shape, out.dtype, dtypes=dict.fromkeys("qkv", out.dtype), **named)
    mma.start(call, call.inputs, call.out, None, False, precision)


def row_of(name: str, precision: str, error: float, **more: Any) -> dict[str, Any]:
    """What the result says of one of them."""
    return {"made": name, "precision": precision, "error": error, **more}


def peers(drawn: Drawn) -> Iterator[Ready]:
    """PyTorch's backends, as far as each takes the shape."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    for backend, name in BACKENDS.items():

        def call(backend: str = backend) -> Any:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                q, k, v = drawn.qkv
                return scaled_dot_product_attention(q, k, v)

        try:
            y = call()
        except RuntimeError as why:
            print(f"{name}, {drawn.shape}: {why}", flush=True)
            continue
        row = row_of(name, drawn.precision, drawn.check(name, y, drawn.precision), versions=versions)
        yield Ready(f"{name} {drawn.precision}", call, drawn.shape.flop, row, items=drawn.shape.n)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--precisions", metavar="NAME,...", default="fp16,bf16", help="default: fp16,bf16")
    parser.add_argument("--shapes", metavar="N", type=int, default=len(SHAPES), help="only the first N (default: all)")
    energy.add_option(parser.add_argument)
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for a run of all")
    options = parser.parse_args(argv)
    precisions = options.precisions.split(",")
    if wrong := [name for name in precisions if name not in ("fp16", "bf16")]:
        parser.error(f"--precisions {wrong[0]!r}: need fp16 or bf16")
    if not 1 <= options.shapes <= len(SHAPES):
        parser.error(f"--shapes {options.shapes}: need 1 to {len(SHAPES)}")
    if find_spec("torch") is None:
        print("attention: needs PyTorch, beside which it measures", file=sys.stderr)
        return 2
    try:
        device.choose(1)
        device.require_tensor_cores("attention", emulated=False)
    except device.DeviceError as error:
        print(f"attention: {error}", file=sys.stderr)
        return 2
    meter = energy.meter(options.joules)
    rows = []
    for shape in SHAPES[: options.shapes]:
        print(shape, flush=True)
        ready = []
        for precision in precisions:
            drawn = Drawn(shape, precision)
            ready += [*own(drawn), *peers(drawn)]
        rows += [{"shape": shape._asdict(), **row} for row in by_turns(ready, meter=meter)]
    here = machine.describe()
    whole = options.shapes == len(SHAPES) and precisions == ["fp16", "bf16"]
    folder = options.results_dir or (raw.RESULTS if whole else None)
    if folder is not None:
        result = {
            "attention": rows,
            "ours": "as CUDA graphs",
            "data": "normal, seed 0",
            "machine": here,
            "commit": machine.commit(),
        }
        raw.write(folder / f"{machine.name(here)}-attention.json", "attention", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
