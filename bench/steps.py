"""Time each step of the ladders to mma and wgmma, relative to cuBLAS: conv2 and conv3 of the network in fp16.

    python bench/steps.py --techniques mma,wgmma --batches 1024,4096

It needs a GPU with tensor cores (Hopper's for wgmma), and PyTorch for cuBLAS. All steps, the tuned kernels and cuBLAS
take turns, each checked against the float64 reference. cuBLAS multiplies the same product, without bias and ReLU, on
features copied out to rows of K * C_in numbers; the copy is not timed.

It writes results/MACHINE-TECHNIQUE-steps.json for each technique. Exit status: 0 measured, 1 a step is wrong, 2
unusable machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cases
import numpy as np
import raw
from numba import cuda
from turns import Ready, by_turns

from charcnn.config import POOL_SIZE, SMALL
from charcnn.gpu import device, graph
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.ops import reference
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.ladder import StepConv1d
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.mma.steps.layer import MmaStepConv1d
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.wgmma.steps.layer import WgmmaStepConv1d

DRAWN = 32
"""Inputs drawn; the batch is these again and again, as its numbers decide how much power a product takes."""

POOLED = "conv1d_relu_maxpool1d"


@dataclass(frozen=True)
class Technique:
    """A ladder, and the tuned kernel at its end."""

    steps: type[StepConv1d]
    tuned: type[MmaConv | WgmmaConv]
    hopper: bool = False


TECHNIQUES = {"mma": Technique(MmaStepConv1d, MmaConv), "wgmma": Technique(WgmmaStepConv1d, WgmmaConv, True)}


@dataclass(frozen=True)
class Layer:
    """A convolution of the network, and the operator that ends it."""

    name: str
    method: str


MEASURED = (Layer("conv2", POOLED), Layer("conv3", "conv1d_relu"))

TUNED = {"conv1d_relu": "tuned kernel", POOLED: "tuned kernel, pooled"}


def sizes(layer: Layer) -> tuple[int, int, int, int]:
    """(L, C_in, K, C_out)."""
    node = next(node for node in SMALL.nodes if node.layer.name == layer.name)
    (c_out, c_in, kernel_size), _ = node.parameters.values()
    return node.in_shape[1], c_in, kernel_size, c_out


def expected(method: str, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """In float64."""
    arrays = (array.astype(np.float64) for array in (x, weight, bias))
    result: np.ndarray = getattr(reference, f"{method}_nlc")(*arrays, *([POOL_SIZE] if method == POOLED else []))
    return result


class Product:
    """A layer of the network: its numbers, its float64 result, and how a result is checked."""

    def __init__(self, layer: Layer, batch: int) -> None:
        self.layer, self.batch = layer, batch
        length, c_in, kernel_size, c_out = sizes(layer)
        draw = np.random.default_rng(0)
        self.drawn = draw.standard_normal((DRAWN, length, c_in), np.float32).astype(np.float16)
        scale = np.float32(np.sqrt(kernel_size * c_in))
        self.weight = draw.standard_normal((kernel_size, c_in, c_out), np.float32) / scale
        self.bias = draw.standard_normal(c_out, np.float32)
        self.x = device.to_device(self.drawn[np.arange(batch) % DRAWN])
        self.flop = 2 * batch * (length - kernel_size + 1) * kernel_size * c_in * c_out

    def check(self, name: str, method: str, got: Callable[[int], np.ndarray]) -> dict[str, Any]:
        """The row of what gave these outputs of an input.

        Raises:
            SystemExit: they are wrong.
        """
        which = sorted({0, self.batch // 2, self.batch - 1})
        want = expected(method, self.drawn[np.array(which) % DRAWN], self.weight, self.bias)
        error, tolerance = cases.error(np.stack([got(i) for i in which]), want), TENSOR_PRECISIONS["fp16"].tolerance
        if not error <= tolerance:
            raise SystemExit(f"{name} at {self.layer.name} is wrong: relative error {error:.1e}, allowed {tolerance:g}")
        row = {"step": name, "layer": self.layer.name, "operator": method, "batch": self.batch}
        return row | {"shape": list(sizes(self.layer)), "error": error, "tolerance": tolerance}

    def kernel(self, technique: str, name: str, method: str, start: Callable[..., Any]) -> Ready:
        """Checked, and recorded as a graph. `start` takes x, and `out` and `stream` by name."""
        shape = start(self.x).shape
        y = device.to_device(np.full(shape, np.nan, np.float16))
        start(self.x, out=y)
        row = self.check(name, method, lambda i: y[i].copy_to_host().astype(np.float64))
        stream = cuda.stream()
        recorded = graph.Graph(lambda on: start(self.x, out=y, stream=on), stream)
        return Ready(f"{self.layer.name} {technique} {name}", recorded.launch, self.flop, row, stream)

    def kernels(self, technique: str) -> Iterator[Ready]:
        """A technique's steps, and its tuned kernel."""
        chosen = TECHNIQUES[technique]
        for step in chosen.steps.steps:
            method = POOLED if step == "pooled" else "conv1d_relu"
            if method in ("conv1d_relu", self.layer.method):
                yield self.kernel(technique, step, method, chosen.steps(step, self.weight, self.bias))
        weights = {"weight": self.weight, "bias": self.bias}
        for method in dict.fromkeys(("conv1d_relu", self.layer.method)):
            pattern = pattern_of(self.weight, "relu", POOL_SIZE if method == POOLED else 1)
            yield self.kernel(technique, TUNED[method], method, chosen.tuned(pattern, weights, precision="fp16").apply)

    def cublas(self) -> Ready:
        """The product by PyTorch."""
        import torch

        _, c_in, kernel_size, c_out = sizes(self.layer)
        rows = torch.from_numpy(self.drawn).cuda().unfold(1, kernel_size, 1).permute(0, 1, 3, 2)
        a = rows[torch.arange(self.batch) % DRAWN].reshape(-1, kernel_size * c_in)
        b = torch.from_numpy(self.weight).cuda().half().reshape(kernel_size * c_in, c_out)
        y = torch.full((len(a), c_out), float("nan"), dtype=torch.float16, device="cuda")

        def run() -> None:
            torch.mm(a, b, out=y)

        def got(i: int) -> np.ndarray:
            outputs = y.reshape(self.batch, -1, c_out)[i].double().cpu().numpy()
            return reference.relu(outputs + self.bias)

        run()
        torch.cuda.synchronize()
        row = self.check("cuBLAS", "conv1d_relu", got)
        return Ready(f"{self.layer.name} cuBLAS", run, self.flop, row | {"torch": torch.__version__})


def measure(techniques: Sequence[str], layer: Layer, batch: int) -> dict[str, list[dict[str, Any]]]:
    """Rows by technique: its steps and its tuned kernel, and cuBLAS in each. All take turns."""
    product = Product(layer, batch)
    every = [(technique, one) for technique in techniques for one in product.kernels(technique)]
    *rows, cublas = by_turns([*(one for _, one in every), product.cublas()])
    found: dict[str, list[dict[str, Any]]] = {technique: [] for technique in techniques}
    for (technique, _), row in zip(every, rows, strict=True):
        found[technique].append(row)
    return {technique: [*own, cublas] for technique, own in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--techniques", metavar="NAME,...", help="mma, wgmma (default: all that this GPU has)")
    parser.add_argument("--batches", default="1024,4096", metavar="N,...", help="default 1024,4096")
    parser.add_argument("--results-dir", type=Path, default=raw.RESULTS, metavar="DIR", help="default: bench/results")
    options = parser.parse_args(argv)
    if not all(word.isdecimal() and int(word) > 0 for word in options.batches.split(",")):
        parser.error(f"--batches {options.batches}: need whole numbers from 1 on")
    techniques = options.techniques.split(",") if options.techniques else []
    if unknown := set(techniques) - set(TECHNIQUES):
        parser.error(f"--techniques {options.techniques}: no {', '.join(sorted(unknown))}; need some of mma, wgmma")
    try:
        device.choose(1)
        for name in techniques or ["mma"]:
            device.require_tensor_cores(name, hopper=TECHNIQUES[name].hopper, emulated=False)
    except device.DeviceError as error:
        print(f"steps: {error}", file=sys.stderr)
        return 2
    if find_spec("torch") is None:
        print("steps: PyTorch is not installed: pip install -e '.[torch]'", file=sys.stderr)
        return 2
    techniques = techniques or [name for name, row in TECHNIQUES.items() if device.has_tensor_cores(hopper=row.hopper)]
    rows: dict[str, list[dict[str, Any]]] = {technique: [] for technique in techniques}
    for batch in map(int, options.batches.split(",")):
        for layer in MEASURED:
            for technique, own in measure(techniques, layer, batch).items():
                rows[technique] += own
    here = machine.describe()
    about = {"data": "standard normal, seed 0", "machine": here, "commit": machine.commit()}
    for technique, own in rows.items():
        schema = f"{technique}_steps"
        raw.write(options.results_dir / f"{machine.name(here)}-{technique}-steps.json", schema, {schema: own, **about})
    return 0


if __name__ == "__main__":
    sys.exit(main())
