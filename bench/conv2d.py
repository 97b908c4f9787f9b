"""Time prepared convolutions over images and sequences, relative to cuDNN, torch.compile, JAX and cuBLAS.

It needs a GPU and PyTorch; JAX takes part if installed. For each shape all take turns: ours with bias and ReLU; cuDNN
without and with them; in fp16 also torch.compile and JAX with them; cuBLAS's product of the same size. Features are
channels last; in float32 cuDNN gets its faster layout. All run as CUDA graphs, except JAX: 8 convolutions in a call
share its cost. First the first and last image are checked against float64, and all others for finite values.

A full run writes results/MACHINE-conv2d.json. Exit status: 0 measured, 1 a result is wrong, 2 unusable machine or
options.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import raw
from layers import Alone
from numba import cuda
from turns import Ready, by_turns

from charcnn import catalog
from charcnn.gpu import device, graph
from charcnn.gpu.launch import Call
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.ops.common import cast, mma_layout
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.tuning.layers import decoded


class Shape(NamedTuple):
    """A convolution with as much padding as keeps the size, stride 1."""

    name: str
    c_in: int
    height: int
    width: int
    kernel: tuple[int, int]
    c_out: int

    @property
    def padding(self) -> tuple[int, int]:
        """(vertical, horizontal)"""
        return self.kernel[0] // 2, self.kernel[1] // 2

    def flop(self, batch: int) -> int:
        """Of a call: products and sums."""
        return 2 * batch * self.height * self.width * self.kernel[0] * self.kernel[1] * self.c_in * self.c_out


def _square(channels: int, size: int, taps: int) -> Shape:
    return Shape(f"{taps}×{taps}, {channels} at {size}²", channels, size, size, (taps, taps), channels)


def _sequence(channels: int, length: int, taps: int) -> Shape:
    return Shape(f"{taps}, {channels} at {length}", channels, 1, length, (1, taps), channels)


IMAGES = (
    _square(64, 56, 3), _square(128, 28, 3), _square(256, 14, 3), _square(512, 7, 3), _square(96, 27, 5),
    _square(64, 56, 7),
)  # fmt: skip
"""ResNet-50's, AlexNet's second layer without groups, and a wide window."""

SEQUENCES = (_sequence(64, 1008, 3), _sequence(256, 336, 7), _sequence(512, 112, 3), _sequence(1024, 56, 3))

OWN = {
    "fp16": ("WgmmaConv", "MmaConv"),
    "bf16": ("WgmmaConv", "MmaConv"),
    "tf32": ("WgmmaConv", "MmaConv"),
    "fp16x3": ("WgmmaConv", "MmaConv"),
    "fp8": ("WgmmaConv", "MmaConv"),
    "fp32": ("WinogradConv", "DoubleBufferedConv"),
}
"""Layers of the catalogue by precision."""

PEER = {"fp16": "fp16", "bf16": "bf16", "tf32": "tf32", "fp16x3": "fp32", "fp8": None, "fp32": "fp32"}
"""In which precision libraries stand beside: fp16x3 is float32's accuracy."""

FLOAT32 = 1e-5
"""Winograd's filtering and FFT, the libraries' own included, round more than sums do."""

TOLERANCES = {"fp32": FLOAT32, "fp16x3": FLOAT32, "tf32": 2e-3, "fp16": 2e-3, "bf16": 1e-2, "fp8": 8e-2}

JAX_CALLS = 8


class Drawn:
    """Features and weights of a shape, with PyTorch on the GPU, and the right result of two images."""

    def __init__(self, shape: Shape, batch: int) -> None:
        import torch
        import torch.nn.functional as F

        generator = torch.Generator("cuda").manual_seed(0)

        def normal(*sizes: int) -> Any:
            return torch.randn(*sizes, device="cuda", generator=generator)

        self.shape, self.batch = shape, batch
        depth = shape.c_in * shape.kernel[0] * shape.kernel[1]
        self.x = normal(batch, shape.height, shape.width, shape.c_in)
        self.weight = normal(*shape.kernel, shape.c_in, shape.c_out) / depth**0.5
        self.bias = normal(shape.c_out)
        two = self.x[[0, -1]].double().permute(0, 3, 1, 2)
        right = F.conv2d(two, self.weight.double().permute(3, 2, 0, 1), self.bias.double(), padding=shape.padding)
        self.right, self.bare = right.relu().permute(0, 2, 3, 1), right.permute(0, 2, 3, 1) - self.bias

    def check(self, name: str, y: Any, precision: str, *, bare: bool = False) -> float:
        """How far a result (N, H, W, C) is off.

        Raises:
            SystemExit: too far, or not finite.
        """
        want = self.bare if bare else self.right
        error = float((y[[0, -1]].double() - want).norm() / want.norm())
        if not (error <= TOLERANCES[precision] and bool(y.isfinite().all())):
            what = f"{name} {precision}, {self.shape.name}, N = {self.batch}"
            raise SystemExit(f"conv2d: {what}: off by {error:.2g}")
        return error


def laid_out(layer: Any, x: np.ndarray, precision: str, unit: float = 1.0) -> Any:
    """Features (N, H, W, C), float32, as a layer takes them, on the GPU.

    In fp16x3 mma has the two terms of a value in other places than wgmma.
    """
    if precision == "fp32":
        return device.to_device(x)
    n, height, width, channels = x.shape
    of, call = TENSOR_PRECISIONS[precision], Call(None, None, (0,), x=x)
    rows = call.inputs[0].reshape((n * height, width, channels))
    if isinstance(layer, MmaConv):
        y = mma_layout.encode(call, rows, width, layer.width, of, unit)
    else:
        y = cast.narrow(call, rows, width, layer.width, of, 1 / unit)
    return y.reshape((n, height, width, y.shape[2]))


def values(layer: Any, y: Any, precision: str) -> np.ndarray:
    """What a layer gave, as floats, on the host."""
    if y.dtype == np.float32:
        return device.to_host(y)
    if isinstance(layer, MmaConv):
        return decoded(device.to_host(y), TENSOR_PRECISIONS[precision])
    return device.to_host(cast.as_float(y, precision))


def own(drawn: Drawn, precision: str) -> Iterator[Ready]:
    """Our layers."""
    import torch

    shape, batch = drawn.shape, drawn.batch
    names = {layer.name: layer for layer in catalog.LAYERS}
    x, weight, bias = (one.cpu().numpy() for one in (drawn.x, drawn.weight, drawn.bias))
    padding = (*(shape.padding[0],) * 2, *(shape.padding[1],) * 2)
    for name in OWN[precision]:
        if name not in names:
            continue
        unit = float(abs(x).max()) / 448 if precision == "fp8" else 1.0
        options: dict[str, Any] = {} if precision == "fp32" else {"precision": precision}
        if precision == "fp8":  # results as they are checked; features in its range
            options |= {"results": "float32", "x_unit": unit}
        try:
            pattern = pattern_of(weight, "relu", padding=padding)
            layer = names[name].made(pattern, {"weight": weight, "bias": bias}, **options)
        except ValueError as why:
            print(f"{name} {precision}, {shape.name}: {why}", flush=True)
            continue
        features = laid_out(layer, x, precision, unit)
        space, stream = Alone(layer, features.shape), cuda.stream()

        def start(on: Any, layer: Any = layer, space: Alone = space, features: Any = features) -> Any:
            space.begin(on)
            return layer(features, space)

        y = start(stream)
        stream.synchronize()
        error = drawn.check(name, torch.as_tensor(values(layer, y, precision)).cuda(), precision)
        row = {"made": name, "precision": precision, "products": 3 if precision == "fp16x3" else 1, "error": error}
        call = graph.Graph(start, stream).launch
        yield Ready(f"{name} {precision}", call, shape.flop(batch), row, stream)


def _only(tile: Any, rate: float, _: Any) -> dict[Any, float]:
    return {tile: rate}


def tiles(shape: Shape, batch: int) -> Iterator[Ready]:
    """Every tile that our kernel has for a shape in fp16: by im2col, and in bands."""
    drawn = Drawn(shape, batch)
    weight, bias = drawn.weight.cpu().numpy(), drawn.bias.cpu().numpy()
    given = pattern_of(weight, "relu", padding=shape.padding), {"weight": weight, "bias": bias}
    conv = WgmmaConv(*given)
    x, stream = device.to_device(drawn.x.half().cpu().numpy()), cuda.stream()
    chosen, _ = conv.windows.tile(x.shape)
    for tile, rate in conv.windows.candidates(x.shape).items():
        one = WgmmaConv(*given)
        vars(one.windows)["candidates"] = partial(_only, tile, rate)
        y = device.empty(one.out_shape(x.shape), np.float16)

        def start(on: Any, one: WgmmaConv = one, y: Any = y) -> Any:
            return one.apply(x, out=y, stream=on)

        start(stream)
        stream.synchronize()
        error = drawn.check(type(tile).__name__, torch_of(y), "fp16")
        row = {"tile": type(tile).__name__, **asdict(tile), "chosen": tile == chosen, "error": error}
        name = f"{type(tile).__name__} {tile.math_warpgroups * 64} x {tile.block_n}, clusters of {tile.cluster_m}"
        yield Ready(name, graph.Graph(start, stream).launch, shape.flop(batch), row, stream)


def torch_of(y: Any) -> Any:
    """A device array in PyTorch, on the GPU, in float64."""
    import torch

    return torch.as_tensor(y.copy_to_host()).cuda().double()


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """PyTorch's call as a CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    made, kept = torch.cuda.CUDAGraph(), [call]  # with what it reads
    with torch.cuda.graph(made):
        kept.append(call())
    return lambda: made.replay() if kept else None  # what it writes lives as long


def peers(drawn: Drawn, precision: str, compiled: bool) -> Iterator[Ready]:
    """cuDNN bare and with bias and ReLU; torch.compile and JAX; cuBLAS's product."""
    import torch
    import torch.nn.functional as F

    shape, batch, flop = drawn.shape, drawn.batch, drawn.shape.flop(drawn.batch)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
    versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    for layout in ("channels last", "channels first") if precision == "fp32" else ("channels last",):
        memory = torch.channels_last if layout == "channels last" else torch.contiguous_format
        x = drawn.x.to(kind).permute(0, 3, 1, 2).contiguous(memory_format=memory)
        weight = drawn.weight.to(kind).permute(3, 2, 0, 1).contiguous(memory_format=memory)
        bias = drawn.bias.to(kind)

        def bare(x: Any = x, weight: Any = weight) -> Any:
            return F.conv2d(x, weight, padding=shape.padding)

        def whole(x: Any = x, weight: Any = weight, bias: Any = bias) -> Any:
            return F.relu(F.conv2d(x, weight, bias, padding=shape.padding))

        row = {"precision": precision, "products": 1, "layout": layout, **versions}
        for name, call, plain in (("cuDNN bare", bare, True), ("cuDNN", whole, False)):
            drawn.check(name, call().permute(0, 2, 3, 1), precision, bare=plain)
            yield Ready(f"{name} {precision} {layout}", captured(call), flop, {"made": name, **row})
        if compiled:
            torch._dynamo.reset()  # it compiles no more than eight shapes of a function
            made = torch.compile(whole, dynamic=False)
            drawn.check("torch.compile", made().permute(0, 2, 3, 1), precision)
            yield Ready(f"torch.compile {precision}", captured(made), flop, {"made": "torch.compile", **row})
    if compiled and find_spec("jax") is not None:
        yield xla(drawn, precision)
    rows, depth = batch * shape.height * shape.width, shape.c_in * shape.kernel[0] * shape.kernel[1]
    a = torch.randn(rows, depth, device="cuda").to(kind)
    b = torch.randn(depth, shape.c_out, device="cuda").to(kind)
    out = torch.empty(rows, shape.c_out, device="cuda", dtype=kind)
    row = {"made": "cuBLAS", "precision": precision, "products": 1, **versions}
    yield Ready(f"cuBLAS {precision}", captured(lambda: torch.mm(a, b, out=out)), flop, row)


def xla(drawn: Drawn, precision: str) -> Ready:
    """JAX's convolution, bias and ReLU, of several batches in a call."""
    import jax
    import jax.numpy as jnp
    import torch

    kind = {"fp16": jnp.float16, "bf16": jnp.bfloat16}[precision]
    weight, bias = (jnp.asarray(one.cpu().numpy(), kind) for one in (drawn.weight, drawn.bias))
    every = [jnp.asarray(drawn.x.cpu().numpy(), kind) for _ in range(JAX_CALLS)]
    padding = [(side, side) for side in drawn.shape.padding]

    def convolve(x: Any) -> Any:
        axes = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, weight, (1, 1), padding, dimension_numbers=axes)

    @jax.jit
    def run(every: Any) -> Any:
        return [jax.nn.relu(convolve(x) + bias) for x in every]

    first = run(every)[0]
    drawn.check("JAX", torch.as_tensor(np.array(first.astype(jnp.float32))).cuda(), precision)
    flop = JAX_CALLS * drawn.shape.flop(drawn.batch)
    row = {"made": "JAX", "precision": precision, "products": 1, "jax": jax.__version__}
    return Ready(f"JAX {precision}", lambda: jax.block_until_ready(run(every)), flop, row)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument(
        "--precisions", metavar="NAME,...", default=",".join(OWN), help=f"default: all, {','.join(OWN)}"
    )
    parser.add_argument(
        "--batches",
        metavar="N,...",
        default="64,256",
        help="images per call; sequences use the last one (default 64,256)",
    )
    parser.add_argument("--tiles", action="store_true", help="only time our kernel's tiles in fp16")
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for a full run")
    options = parser.parse_args(argv)
    precisions = options.precisions.split(",")
    if wrong := [name for name in precisions if name not in OWN]:
        parser.error(f"--precisions {wrong[0]!r}: need one of {', '.join(OWN)}")
    batches = [int(one) for one in options.batches.split(",") if one.isdecimal() and int(one) > 0]
    if not batches:
        parser.error(f"--batches {options.batches!r}: need numbers of at least 1")
    if find_spec("torch") is None:
        print("conv2d: needs PyTorch, beside which it measures", file=sys.stderr)
        return 2
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        device.choose(1)
        device.require_hopper("conv2d", emulated=False)
    except device.DeviceError as error:
        print(f"conv2d: {error}", file=sys.stderr)
        return 2
    rows = []
    for shape, batch in [*((s, n) for s in IMAGES for n in batches), *((s, batches[-1]) for s in SEQUENCES)]:
        if options.tiles:
            print(f"{shape.name}, N = {batch}", flush=True)
            rows += [{"shape": shape.name, "batch": batch, **row} for row in by_turns(list(tiles(shape, batch)))]
            continue
        drawn = Drawn(shape, batch)
        ready = [one for name in precisions for one in own(drawn, name)]
        beside = dict.fromkeys(PEER[name] for name in precisions if PEER[name] is not None)
        ready += [one for name in beside for one in peers(drawn, str(name), name == "fp16")]
        print(f"{shape.name}, N = {batch}", flush=True)
        rows += [{"shape": shape.name, "batch": batch, **row} for row in by_turns(ready)]
    here = machine.describe()
    whole = precisions == list(OWN) and options.batches == parser.get_default("batches")
    folder = options.results_dir or (raw.RESULTS if whole else None)
    if options.tiles and folder is not None:
        result = {"tiles": rows, "machine": here, "commit": machine.commit()}
        folder = options.results_dir or raw.RESULTS / "designs"
        raw.write(folder / f"{machine.name(here)}-conv2d-tiles.json", "tiles", result)
    elif folder is not None:
        result = {"convolutions": rows, "data": "normal, seed 0", "machine": here, "commit": machine.commit()}
        raw.write(folder / f"{machine.name(here)}-conv2d.json", "conv2d", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
