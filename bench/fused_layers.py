"""Time fused4's four convolutions as one, two, three or four kernels, of whole images or tiles.

    python bench/fused_layers.py --batches 1,1024 --tiles 1,2,3,4,5 --precisions fp32,fp16

It needs an NVIDIA GPU, except with --tiny. Each way to divide the four (`charcnn.ops.chain`, kernels=) is checked
against the float64 reference and timed as one CUDA graph, on images on the GPU; so are the naive kernels, one per
layer.

A full run writes results/MACHINE-fused-layers.json. Exit status: 0 measured, 1 a result is wrong, 2 unusable options.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import raw
from turns import Ready, by_turns

from charcnn.catalog import FLOAT32
from charcnn.gpu import device
from charcnn.gpu.graph import Graph
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.layers import Conv2d, Relu
from charcnn.model import network as forms
from charcnn.model import params
from charcnn.networks import fused4
from charcnn.networks.architecture import Architecture
from charcnn.ops import conv2d_naive, relu_naive
from charcnn.ops.chain import plan

PARTITIONS = ((1, 1, 1, 1), (2, 1, 1), (3, 1), (2, 2), (1, 1, 2), (1, 2, 1), (1, 3), (4,))
"""How many of the four convolutions each kernel has."""
ALLOWED = {"fp32": FLOAT32, "fp16": 2e-3}


def ways(
    network: Architecture, tiles: Sequence[int], precisions: Sequence[str], batch: int
) -> Iterator[tuple[str, Any]]:
    """Every plan that fits, under its name."""
    layers = [node.layer for node in network.nodes if isinstance(node.layer, Conv2d | Relu)]
    for precision in precisions:
        for kernels in PARTITIONS:
            for method, tile in (("whole", None), ("rolling", None), *(("tiles", tile) for tile in tiles)):
                try:
                    made = plan(layers, in_shape=network.image, kernels=kernels, method=method, tile=tile,
                                precision=precision, batch=batch)  # fmt: skip
                except ValueError as error:
                    print(f"{'+'.join(map(str, kernels))} {method} {tile or ''} {precision}: left out: {error}")
                    continue
                yield f"{'+'.join(map(str, kernels))} {method}{f' {tile}' if tile else ''} {precision}", made


def layer_by_layer(weights: Sequence[Any], biases: Sequence[Any], layers: Sequence[Conv2d]) -> Callable[..., Any]:
    """A naive kernel a layer, as the project began."""

    def call(x: Any, stream: Any) -> Any:
        for weight, bias, layer in zip(weights, biases, layers, strict=True):
            x = relu_naive(conv2d_naive(x, weight, bias, **layer.moves, stream=stream), stream=stream)
        return x

    return call


def measure(batch: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row a way.

    Raises:
        SystemExit: a result is wrong.
    """
    from numba import cuda

    variant = fused4.VARIANTS[-1 if options.tiny else 0]
    network = Architecture("fused4", variant, fused4.layers(variant))
    held = params.init(network, 0)
    nodes = [node for node in network.nodes if isinstance(node.layer, Conv2d | Relu)]
    convolutions = [node.layer for node in nodes if isinstance(node.layer, Conv2d)]
    x = np.random.default_rng(0).random((batch, *network.image), np.float32)
    expected = forms.run(nodes, x[:2].astype(np.float64), held)
    weights, biases = (
        [device.to_device(held[f"{of.name}.{part}"]) for of in convolutions] for part in ("weight", "bias")
    )
    on_gpu, stream = device.to_device(x), cuda.stream()
    calls: list[tuple[str, Callable[[Any], Any], dict[str, Any]]] = []
    if not options.tiny:
        naive = layer_by_layer(weights, biases, convolutions)
        calls.append(("layer by layer, naive", lambda stream: naive(on_gpu, stream), {"kernels": [1] * 8}))
    for name, made in ways(network, options.tiles, options.precisions, batch):
        fused, out, workspace = (
            made.compile(),
            device.empty((batch, *made.out_shape), np.float32),
            made.workspace(batch),
        )
        again = {"out": out, "workspace": workspace}
        said = {"launches": made.launches, "computed_flops": made.computed_flops, "dram_bytes": made.dram_bytes,
                "forecast": made.seconds}  # fmt: skip
        calls.append((name, _call(fused, on_gpu, weights, biases, again), said))
    ready = []
    for name, call, said in calls:
        result = call(stream)
        stream.synchronize()
        found = device.to_host(result)[:2].reshape(expected.shape)
        error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
        if not error <= ALLOWED["fp16" if "fp16" in name else "fp32"]:
            raise SystemExit(f"{name} is wrong: {error:.2g}")
        if not options.tiny:
            # The naive launchers allocate, which a graph cannot.
            start = partial(call, stream) if "naive" in name else Graph(call, stream).launch
            flop = batch * sum(node.flops for node in nodes)
            row = {"way": name, "batch": batch, "error": error, **said}
            ready.append(Ready(f"{name}, N = {batch}", start, flop, row, stream))
    rows = by_turns(ready) if ready else []
    for row in rows:
        row["images_per_second"] = batch / row["microseconds"] * 1e6
    return rows


def _call(fused: Any, x: Any, weights: Any, biases: Any, again: dict[str, Any]) -> Callable[[Any], Any]:
    return lambda stream: fused(x, weights, biases, **again, stream=stream)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--batches", type=_ints, default=[1, 1024], metavar="N,...", help="images per call (default 1,1024)")
    add("--tiles", type=_ints, default=[1, 2, 3, 4, 5], metavar="T,...", help="tiles of the last map (default 1 to 5)")
    maps = "precisions of the maps (default fp32,fp16)"
    add("--precisions", type=lambda text: text.split(","), default=["fp32", "fp16"], metavar="P,...", help=maps)
    add("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for a full run")
    add("--tiny", action="store_true", help="only show in the simulator that it runs")
    options = parser.parse_args(argv)
    here = machine.describe()
    if not options.tiny and (device.SIMULATED or not here["gpus"]):
        parser.error("there is no GPU: --tiny shows in the simulator that it runs")
    rows = [row for batch in options.batches for row in measure(2 if options.tiny else batch, options)]
    if rows and (options.results_dir or options == parser.parse_args([])):
        result = {"ways": rows, "machine": here, "commit": machine.commit()}
        raw.write(
            (options.results_dir or raw.RESULTS) / f"{machine.name(here)}-fused-layers.json", "fused_layers", result
        )
    return 0


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
