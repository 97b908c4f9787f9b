"""Time plans of `direct_mma` and `direct` for ece408's two convolutions.

It needs a GPU, except with --compile. As in bench/op_times.py, features are float32, channels first, and each plan is a
CUDA graph with all its packing. The first and last image are checked against the float64 reference, and a hundred for
equal bits among plans of direct_mma. Plans take turns; medians count.

It writes results/designs/MACHINE-direct-mma-plans.json. Exit status: 0 measured, 1 a result is wrong, 2 unusable
options.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import raw
from op_times import LAYERS, graphs
from turns import by_turns

from charcnn.catalog import FLOAT32
from charcnn.compiling.stand_in import Target, standing_in
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.layers.windows import Window
from charcnn.ops import conv2d_direct, conv2d_direct_mma, reference
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv2d import direct, direct_mma, direct_mma_plan, direct_plan

LOOKED_AT = 100
"""Images, at most, whose bits are compared among plans of `direct_mma`."""

Way = tuple[dict[str, Any], partial[Any], float]
"""What a row says of it, the call, whose last argument is the result, and the error that it may have."""


def planned(
    module: Any, plan: Any, launcher: Callable[..., Any], arrays: Sequence[Any], out: Any, stream: Any = None
) -> Any:
    """One call by this plan."""
    with mock.patch.object(module, "plan", return_value=plan):
        return launcher(*arrays, out=out, stream=stream)


def ways(x: np.ndarray, weight: np.ndarray, options: argparse.Namespace) -> Iterator[Way]:
    """Every plan that fits, with its call."""
    arrays = [device.to_device(array) for array in (x, weight, np.zeros(len(weight), np.float32))]
    window = Window(weight.shape[2:])
    out = device.empty((len(x), len(weight), *window.out(*x.shape[2:])), np.float32)
    limit, c_in, kernel_rows = device.shared_limit(), x.shape[1], weight.shape[2]
    found = [
        one
        for one in direct_plan._candidates(x.shape, len(weight), window, direct_plan.NO_POOL, True)
        if one.shared_bytes(c_in, kernel_rows) <= limit and one.blocks(len(x), c_in, kernel_rows)
    ]
    chosen = direct_plan.plan(x.shape, len(weight), window, direct_plan.NO_POOL, True)
    found.sort(key=lambda one: (one != chosen, one.time(len(x), c_in, kernel_rows)))
    for one in found[: options.direct]:
        said = {"technique": "direct", "tile": [one.tile.rows, one.tile.columns, one.tile.maps], "tiles": one.tiles,
                "groups": one.groups, "strips": one.strips, "registers": one.tile.registers}  # fmt: skip
        yield said, partial(planned, direct, one, conv2d_direct, arrays, out), FLOAT32
    for precision in options.precisions:
        for plan in plans(x.shape[1:], len(weight), window, precision, options):
            said = {"technique": f"direct_mma_{precision}", "rows": plan.rows, "warps": plan.warps,
                    "groups": plan.passes if plan.groups else 0, "registers": plan.max_registers,
                    "resident": plan.resident}  # fmt: skip
            launcher = partial(conv2d_direct_mma, precision=precision)
            call = partial(planned, direct_mma, plan, launcher, arrays, out)
            yield said, call, TENSOR_PRECISIONS[precision].tolerance


def plans(
    x: tuple[int, ...], c_out: int, window: Window, precision: str, options: argparse.Namespace
) -> Iterator[direct_mma_plan.DirectMmaPlan]:
    """Those of `direct_mma` that fit: results go straight to y, then those whose results leave as bulk copies."""
    for first in direct_mma_plan.candidates(x, c_out, window, precision):
        for warps, blocks in product(options.warps, options.blocks) if first.rows in options.rows else ():
            one = replace(first, warps=warps, blocks=blocks)
            if one.blocks_by_shared >= max(1, blocks):
                yield one
    if device.has_capability(direct_mma_plan.BULK_COPIES):
        yield from direct_mma_plan.staged_candidates(x, c_out, window, precision, options.staged)


def measure(name: str, images: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row a plan.

    Raises:
        SystemExit: a result is wrong, or has other bits than that of another plan of direct_mma.
    """
    node, rng = LAYERS[name], np.random.default_rng(0)
    x = rng.random((images, *node.in_shape), np.float32)
    weight = rng.standard_normal(node.parameters[f"{name}.weight"], np.float32)
    ends = [0, images - 1]
    expected = reference.conv2d(x[ends].astype(np.float64), weight.astype(np.float64), np.zeros(len(weight)))
    nothing, rows, calls = np.full((1, *expected.shape[1:]), np.nan, np.float32), [], []
    looked_at = sorted({*ends, *range(0, images, -(-images // LOOKED_AT))})
    first: dict[str, np.ndarray] = {}
    for said, call, allowed in ways(x, weight, options):
        for i in looked_at:
            call.args[-1][i : i + 1].copy_to_device(nothing)  # of a plan that does nothing, too
        out = call()
        results = np.concatenate([out[i : i + 1].copy_to_host() for i in looked_at])
        result = results[[0, -1]] if images > 1 else results[[0, 0]]
        error = float(np.linalg.norm(result - expected) / np.linalg.norm(expected))
        label = " ".join(f"{value}" for value in said.values())
        if not error <= allowed:
            raise SystemExit(f"{name}, {label}: is wrong: {error:.2g}, allowed {allowed:g}")
        bits = results.view(np.uint32)
        if "warps" in said and not np.array_equal(first.setdefault(said["technique"], bits), bits):
            raise SystemExit(f"{name}, {label}: has other bits than the first plan")
        rows.append({"layer": name, "images": images, **said, "error": error})
        calls.append((f"{label} error {error:.1g}", call))
    for row, timed in zip(rows, by_turns(graphs(calls, name, images * node.flops)), strict=True):
        row |= {"microseconds": timed["microseconds"], "tflop_per_second": timed["tflop_per_second"]}
    return rows


_to_compile: list[tuple[Any, Any]] = []
"""Kernels and Numba's types of their arguments."""


def _compiled(number: int) -> None:
    kernel, kinds = _to_compile[number]
    kernel.compile(kinds)


def compile_all(options: argparse.Namespace) -> int:
    """Compile all kernels for compute capability 9.0 into Numba's cache, and say how many; it needs no GPU."""
    with standing_in(Target.named("9.0"), lambda kernel, kinds: _to_compile.append((kernel, kinds))):
        for name in options.layers:
            node = LAYERS[name]
            x = np.zeros((options.images, *node.in_shape), np.float32)
            for _, call, _ in ways(x, np.zeros(node.parameters[f"{name}.weight"], np.float32), options):
                call()
        # Forked: what was made of Python's functions cannot be sent.
        with ProcessPoolExecutor(options.compile, get_context("fork")) as pool:
            done = [*pool.map(_compiled, range(len(_to_compile)))]
    print(f"{len(done)} kernels compiled")
    return 0


def choices(text: str) -> list[tuple[int, int, int, int]]:
    """Rows, warps, blocks and groups, as 2/8/2/2,3/6/2/1; none of an empty text.

    Raises:
        ValueError: there are not four.
    """
    found = [tuple(int(part) for part in one.split("/")) for one in text.split(",") if text]
    if any(len(one) != 4 or min(one) < 1 for one in found):
        raise ValueError(f"{text}: need ROWS/WARPS/BLOCKS/GROUPS, of at least 1")
    return [(rows, warps, blocks, groups) for rows, warps, blocks, groups in found]


def numbers(text: str) -> list[int]:
    """Whole numbers between commas."""
    return [int(part) for part in text.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--images", type=int, default=10_000, metavar="N", help="default 10,000")
    add, names = parser.add_argument, {"type": lambda text: text.split(","), "metavar": "NAME,..."}
    add("--layers", default=[*LAYERS], help=f"default: both, {','.join(LAYERS)}", **names)
    add("--precisions", default=["fp16x3", "tf32"], help="default fp16x3,tf32", **names)
    add("--rows", type=numbers, default=[1, 2, 3], metavar="N,...", help="rows per band (default 1,2,3)")
    add("--warps", type=numbers, default=[4], metavar="N,...", help="warps per block (default 4)")
    blocks = "blocks per multiprocessor that registers must allow (default 0: as the plan estimates)"
    add("--blocks", type=numbers, default=[0], metavar="N,...", help=blocks)
    staged = "plans whose results leave as bulk copies: rows per band, warps per block, most blocks per multiprocessor,"
    staged += " least groups per image (default: all candidates)"
    add("--staged", type=choices, metavar="R/W/B/G,...", help=staged)
    add("--compile", type=int, metavar="JOBS", help="only compile, in so many processes")
    add("--direct", type=int, default=2, metavar="N", help="plans of direct with the shortest forecast (default 2)")
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results/designs")
    options = parser.parse_args(argv)
    if unknown := {*options.layers} - {*LAYERS}:
        parser.error(f"--layers: there is no {', '.join(sorted(unknown))}")
    if unknown := {*options.precisions} - {*direct_mma_plan.PRECISIONS}:
        parser.error(f"--precisions: {', '.join(sorted(unknown))}: need {', '.join(direct_mma_plan.PRECISIONS)}")
    if options.compile:
        return compile_all(options)
    here = machine.describe()
    if device.SIMULATED or not here["gpus"]:
        parser.error("there is no GPU")
    rows = [row for name in options.layers for row in measure(name, options.images, options)]
    folder = options.results_dir or raw.RESULTS / "designs"
    result = {"tiles": rows, "machine": here, "commit": machine.commit()}
    raw.write(folder / f"{machine.name(here)}-direct-mma-plans.json", "tiles", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
