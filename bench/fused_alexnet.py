"""Time AlexNet's first two layers as one kernel, relative to kernel by kernel and PyTorch; and the whole network.

It needs an NVIDIA GPU, except with --tiny. All read bytes on the GPU, are checked against the float64 reference, and
take turns; ours are one CUDA graph each. Each cell is added to results/MACHINE-fused-alexnet.json; cells of earlier
runs stay.

Exit status: 0 measured, 1 a result is wrong, 2 unusable options.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate, product
from math import prod
from pathlib import Path
from typing import Any

import energy
import numpy as np
import raw
from dram import under_ncu
from turns import Ready, by_turns

from charcnn.catalog import network as network_row
from charcnn.gpu import device
from charcnn.gpu.graph import Graph
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.model import network as forms
from charcnn.model import params
from charcnn.networks import channels_last, fused
from charcnn.networks.architecture import Architecture
from charcnn.networks.channels_last_layers import TECHNIQUES
from charcnn.networks.lowering import lower
from charcnn.ops.chain.plan2d import METHODS
from charcnn.ops.common.layer import flat
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.sequence import LayerSequence, Stage
from charcnn.runtime.stream import StreamBuffers

ROOT = Path(__file__).parent.parent
SEPARATE = "layer by layer"
PEERS = {"fp32": ("torch-float32", "torch-tf32"), "fp16": ("torch-fp16",)}
ALLOWED = {"fp32": 5e-5, "fp16": 6e-3, "float32": 5e-5, "tf32": 6e-3}
CHECKED = 2
"""Images, the first ones, held against the reference."""
LOOSER = {"front": 1, "network": 4}
"""Times as far the whole network's results may be off."""


@dataclass(frozen=True)
class Spec:
    """What is timed: a way to compute the first two layers, or the network with them."""

    variant: str
    precision: str
    batch: int
    way: str
    part: str
    """front or network"""

    def text(self) -> str:
        """For a command line."""
        return "/".join(map(str, (self.variant, self.precision, self.batch, self.way, self.part)))

    @classmethod
    def of(cls, text: str) -> Spec:
        """Back."""
        variant, precision, batch, way, part = text.split("/")
        return cls(variant, precision, int(batch), way, part)


@cache
def given(variant: str) -> tuple[Architecture, params.Params]:
    """The network, and its random weights."""
    network = network_row("alexnet").architecture(variant)
    return network, params.init(network, 0)


@cache
def images(variant: str, batch: int) -> np.ndarray:
    """Random bytes."""
    return np.random.default_rng(0).integers(0, 256, (batch, given(variant)[0].length), np.uint8)


@cache
def expected(variant: str, part: str, count: int) -> np.ndarray:
    """The float64 reference's."""
    network, weights = given(variant)
    nodes = network.nodes if part == "network" else front_nodes(network)
    return forms.run(nodes, images(variant, count), weights)


def front(network: Architecture, plan: Any) -> Any:
    """The first two layers as one op, planned."""
    return lower(network.nodes, (*fused.SIMPLIFY, partial(fused.join_front, name="", plan=plan)))[1]


def front_nodes(network: Architecture) -> Sequence[Any]:
    """Pixels and the first two layers, as the network has them."""
    names = {"pixels1", *(node.layer.name for node in front(network, lambda nodes: nodes).nodes)}
    return [node for node in network.nodes if node.layer.name in names]


def planned(spec: Spec, threads: int | None = None) -> Any:
    """The plan of the one kernel. ValueError: it does not fit."""
    network, _ = given(spec.variant)
    plan = partial(fused.planned_front, precision=spec.precision, method=spec.way, batch=spec.batch)
    if threads is not None:
        plan = partial(fused.planned, batch=spec.batch, kernels=(fused.FUSED,), method=spec.way, threads=threads)
    return front(network, plan).plan


def stages(spec: Spec, plan: Any) -> list[Stage]:
    """The layers of ours, all or those of the front alone."""
    network, weights = given(spec.variant)
    behind, how = fused.behind_of(spec.precision), {"batch": spec.batch, "precision": spec.precision}
    if spec.way == SEPARATE:
        ops = lower(network.nodes, channels_last.rewrites(behind, network, **how))
        made = channels_last.stages(ops, weights, TECHNIQUES[behind](spec.precision))
    else:
        ops = lower(network.nodes, fused.rewrites("strong", network, **how, plan=lambda nodes: plan))
        made = fused.stages(ops, weights, spec.precision)
    if spec.part == "network":
        return made
    ends = accumulate(label.count("+") + 1 for label, _ in made)
    count, found = len(front_nodes(network)), zip(made, ends, strict=True)
    # Of a chain in float32 what turns its result is no part of it.
    return [
        (label, [layer for layer in layers if not isinstance(layer, fused.ChannelsLast)])
        for (label, layers), end in found
        if end <= count
    ]


class Ours:
    """A way of ours, its weights and buffers on the GPU."""

    def __init__(self, spec: Spec, plan: Any = None) -> None:
        network, _ = given(spec.variant)
        self.sequence = LayerSequence(stages(spec, plan))
        self.layers = flat(self.sequence.layers, spec.batch)
        largest, scratch = self.sequence.room(spec.batch, network.length)
        self.buffers = StreamBuffers(0, 0, Monitor(), pinned=16, features=largest, scratch=scratch)
        self._forward = self.sequence.forward(self.buffers, timed=False)
        self.ids = device.to_device(images(spec.variant, spec.batch))
        self.stream = self.buffers.stream

    def __call__(self, stream: Any) -> Any:
        """Start it all on a stream."""
        self.buffers.rewind()
        with self.buffers.on(stream):
            return self._forward(self.ids)

    def moved(self) -> int:
        """Bytes of maps an image that kernels read and write, by the layers' shapes."""
        x, total = tuple(self.ids.shape), 0
        size = prod(x)
        for layer in self.layers:
            written = layer.writes(x)[-1]
            held = sum(array.nbytes for array in layer.scratch(x).values())
            total += size + written.nbytes + 2 * held
            x, size = written.shape, written.nbytes
        return total // self.ids.shape[0]


def error_of(result: np.ndarray, spec: Spec, last: bool) -> float:
    """How far the first images' results (N, values) are off; `last`: whether channels of the front's are."""
    want = expected(spec.variant, spec.part, min(CHECKED, spec.batch))
    found = np.asarray(result[: len(want)], np.float64)
    if spec.part == "front" and last:
        n, channels, height, width = want.shape
        found = found.reshape(n, height, width, -1)[..., :channels].transpose(0, 3, 1, 2)
    found = found.reshape(want.shape)
    return float(np.linalg.norm(found - want) / np.linalg.norm(want))


def ready(spec: Spec, plan: Any, *, tiny: bool = False) -> tuple[Ready, Ours]:
    """A way of ours, checked.

    Raises:
        SystemExit: it is wrong.
    """
    made, (network, _) = Ours(spec, plan), given(spec.variant)
    result = made(made.stream)
    made.stream.synchronize()
    last = spec.precision != "fp32" or spec.way == SEPARATE
    error = error_of(device.to_host(result).reshape(spec.batch, -1), spec, last)
    if not error <= ALLOWED[spec.precision] * LOOSER[spec.part]:
        raise SystemExit(f"{spec.text()} is wrong: an error of {error:.2g}, {ALLOWED[spec.precision]:g} allowed")
    nodes = network.nodes if spec.part == "network" else front_nodes(network)
    flop = sum(node.flops for node in nodes)
    row = {**vars(spec), "error": error, "flops": flop, "parameter_bytes": made.sequence.nbytes}
    row["dram_bytes"] = made.moved()
    if plan is not None:
        row |= {
            "forecast": plan.seconds,
            "shared_bytes": plan.shared_bytes,
            "computed": plan.computed_flops / plan.flops,
        }
        row["weights_from_l2"] = getattr(plan, "weight_bytes", None)
        row["plan"] = plan.describe()
    start = (lambda: made(made.stream)) if tiny else Graph(made, made.stream).launch
    return Ready(spec.text(), start, spec.batch * flop, row, made.stream, items=spec.batch), made


def peer(spec: Spec) -> Ready | None:
    """PyTorch's, checked; None where it is not there, cannot or is wrong, which is said."""
    try:
        import torch
        from libraries import pytorch

        network, weights = given(spec.variant)
        name, _, how = spec.way.partition(" ")
        arithmetic = name.removeprefix("torch-")
        nodes = network.nodes if spec.part == "network" else front_nodes(network)
        own = Architecture(network.name, network.variant, tuple(node.layer for node in nodes))
        held = {of: weights[of] for of in own.parameter_shapes}
        made = pytorch.build(
            held, own, device="cuda", threads=1, precision=arithmetic, compiled=how == "compiled", channels_last=True
        )
        made.load(images(spec.variant, spec.batch))
        made.prepare(1)
        made.run(3)
    except Exception as error:
        print(f"{spec.text()}: left out: {' '.join(str(error).split())[:300]}")
        return None
    error = error_of(made.logits().reshape(spec.batch, -1), spec, False)
    if not error <= ALLOWED[arithmetic] * LOOSER[spec.part]:
        print(f"{spec.text()}: left out: an error of {error:.2g}")
        return None
    flop = sum(node.flops for node in nodes)

    @torch.inference_mode()
    def call() -> None:  # which others' settings and waits are no part of
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = arithmetic == "tf32"
        made._model(made._ids)

    row = {**vars(spec), "error": error, "flops": flop, "versions": made.versions}
    return Ready(spec.text(), call, spec.batch * flop, row, made, items=spec.batch)


def ways(variant: str, precision: str, batch: int, threads: int | None = None) -> Iterator[tuple[Spec, Any]]:
    """Ours, with plans; what does not fit is said."""
    for part in ("front", "network") if threads is None else ("front",):
        for way in METHODS:
            spec = Spec(variant, precision, batch, way, part)
            try:
                plan = planned(spec, threads)
            except ValueError as error:
                if part == "front":
                    print(f"{spec.text()}: left out: {error}")
                continue
            yield spec, plan
        yield Spec(variant, precision, batch, SEPARATE, part), None


def measure(cell: tuple[str, str, int], peers: bool, compiled: bool, meter: energy.Meter) -> list[dict[str, Any]]:
    """A row a way, all by turns."""
    every, kept = [], []
    for spec, plan in ways(*cell):
        one, made = ready(spec, plan)
        every.append(one)
        kept.append(made)
    for name in PEERS[cell[1]] if peers else ():
        for how, part in (("", "front"), ("", "network"), *([(" compiled", "front")] if compiled else [])):
            every += filter(None, [peer(Spec(*cell, name + how, part))])
    rows = by_turns(every, meter=meter)
    for row in rows:
        row["images_per_second"] = cell[2] / row["microseconds"] * 1e6
    return rows


def warmed(options: argparse.Namespace) -> None:
    """Compile every kernel into Numba's cache, by processes that run each once.

    Raises:
        SystemExit: one failed.
    """
    specs: dict[Any, Spec] = {}
    for cell in product(options.variants, options.precisions, options.batches):
        for spec, plan in ways(*cell):
            if plan is not None:
                specs.setdefault(getattr(plan, "steps", None) or replace(plan, batch=1), spec)
            elif spec.part == "network":
                specs[spec] = spec  # with what lies behind the one kernel

    def run(spec: Spec) -> str:
        words = [sys.executable, __file__, "--run", spec.text()]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else f"{spec.text()}: {done.stdout[-500:]}{done.stderr[-2000:]}"

    with ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, 16))) as pool:
        failed = [said for said in pool.map(run, specs.values()) if said]
    if failed:
        raise SystemExit("\n".join(failed))
    print(f"{len(specs)} ways compiled")


def profiled(spec: Spec) -> None:
    """Run a way once, check it, and run it again for whoever profiles it."""
    from numba import cuda

    plan = None if spec.way == SEPARATE else planned(spec)
    _, made = ready(spec, plan, tiny=True)
    cuda.synchronize()
    with cuda.profiling():
        made(made.stream)
        cuda.synchronize()


def counted(spec: Spec) -> dict[str, Any]:
    """Bytes of DRAM that Nsight Compute counts an image."""
    return vars(spec) | under_ncu([__file__, "--run", spec.text()], spec.text(), spec.batch)[0]


def shown(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Counts of all ways of the front, printed."""
    found = []
    for variant, precision in product(options.variants, options.precisions):
        for spec, _ in ways(variant, precision, options.dram):
            if spec.part == "front":
                found.append(counted(spec))
                print(json.dumps(found[-1]), flush=True)
    return found


def tried() -> int:
    """In the simulator: the tiny variant in float32, its kernel by each method and kernel by kernel."""
    for spec, plan in ways("tiny", "fp32", 1, threads=32):
        one, _ = ready(spec, plan, tiny=True)
        print(f"{one.name}: an error of {one.row['error']:.2g}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add, words = parser.add_argument, lambda text: text.split(",")
    add("--batches", type=_ints, default=[1, 32, 256, 1024], metavar="N,...", help="images; default 1,32,256,1024")
    add("--variants", type=words, default=["2012", "torchvision"], metavar="V,...", help="default 2012,torchvision")
    add("--precisions", type=words, default=["fp32", "fp16"], metavar="P,...", help="default fp32,fp16")
    add("--no-peers", action="store_true", help="leave PyTorch out")
    add("--compiled", type=_ints, default=[], metavar="N,...", help="batches for torch.compile, up to a minute each")
    add("--compile", action="store_true", help="only compile all kernels into Numba's cache, in many processes")
    add("--dram", type=int, metavar="N", help="count DRAM bytes at N images by Nsight Compute, instead of times")
    energy.add_option(add)
    add("--results-dir", type=Path, metavar="DIR", help="default: bench/results")
    add("--tiny", action="store_true", help="only show in the simulator that it runs")
    add("--run", type=Spec.of, metavar="SPEC", help=argparse.SUPPRESS)  # what --compile and ncu start
    options = parser.parse_args(argv)
    if options.tiny:
        return tried()
    here = machine.describe()
    if device.SIMULATED or not here["gpus"]:
        parser.error("there is no GPU: --tiny shows in the simulator that it runs")
    if options.run is not None:
        profiled(options.run)
        return 0
    if options.compile:
        warmed(options)
        return 0
    if options.dram is not None and shutil.which("ncu") is None:
        parser.error("--dram: needs ncu on the PATH")
    file = (options.results_dir or raw.RESULTS) / f"{machine.name(here)}-fused-alexnet.json"
    cells = product(options.variants, options.precisions, options.batches)
    if options.dram is not None:
        grown(file, here, "counted", shown(options))
    else:
        meter = energy.meter(options.joules)
        for cell in cells:
            grown(file, here, "ways", measure(cell, not options.no_peers, cell[2] in options.compiled, meter))
    return 0


def grown(file: Path, here: dict[str, Any], name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows to the result, in order, in place of those of the same variant, precision and batch."""
    of = lambda row: (row["variant"], row["precision"], row["batch"])  # noqa: E731
    result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"ways": [], "counted": []}
    new = {of(row) for row in rows}
    result |= {name: sorted([row for row in result[name] if of(row) not in new] + rows, key=of)}
    result |= {"machine": here, "commit": machine.commit()}
    raw.write(file, "fused_alexnet", {key: value for key, value in result.items() if key != "schema"})


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
