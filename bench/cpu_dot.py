"""Time products of int8 and bf16 on one CPU core, by layer, relative to float32 and to the instructions' peak.

    python bench/cpu_dot.py

The peak is two instructions a cycle. A chain of integer products, 4 cycles each on AMD's and Intel's cores, gives the
clock. Each number is the best of many calls, so that other load counts little.

Exit status: 0 measured, 2 the processor lacks the instructions.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import raw

from charcnn.config import POOL_SIZE, SMALL
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.ops.common import cpu_dot
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.conv1d.cpu_dot import CpuDotConv

INPUTS = 8
"""Of a call, so that features leave cache L2 as in a level's batch."""

LINKS = 250_000
"""Of the chain: a product of 3 cycles and a sum of 1."""

LAYERS = {
    "conv2": (INPUTS, SMALL.block_lengths[0], 256, 256, 7, POOL_SIZE),
    "conv3": (INPUTS, SMALL.block_lengths[1], 256, 256, 3, 1),
    "fc1, N=32": (1, 32, SMALL.features, SMALL.units, 1, 1),
    "fc1, N=1": (1, 1, SMALL.features, SMALL.units, 1, 1),
}
"""(inputs, length, C_in, C_out, K, pool): a linear layer has a row an input."""


def best(call: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest call."""
    call()
    found, stop = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < stop:
        start = time.perf_counter()
        call()
        found = min(found, time.perf_counter() - start)
    return float(found)


@numba.njit
def _chain(factor):
    value = factor
    for i in range(LINKS):
        value = value * factor + i
    return value


def clock(seconds: float) -> float:
    """Giga-cycles a second."""
    return 4 * LINKS / best(lambda: _chain(7), seconds) / 1e9


def rate(size: Sequence[int], precision: str, seconds: float) -> float:
    """Giga-products a second of a layer in a precision of DOT_FORMATS, or in fp32."""
    n, length, c_in, c_out, taps, pool = size
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((c_out, c_in, taps)) / 100).astype(np.float32)
    bias, kept = np.zeros(c_out, np.float32), (length - taps + 1) // pool
    of = pattern_of(weight.T, "relu", pool), {"weight": weight.T, "bias": bias}
    if precision == "fp32":
        x, out = rng.random((n, length, c_in), np.float32), np.empty((n, kept, c_out), np.float32)
        exact = CpuConv(*of)
        taken = best(lambda: exact(x, out), seconds)
    else:
        dtype = cpu_dot.DOT_FORMATS[precision].dtype
        some = rng.integers(0, 128, (n, length, c_in)).astype(dtype)  # of bf16 tiny numbers, all finite
        to = np.empty((n, kept, c_out), dtype)
        layer = CpuDotConv(*of, precision=precision)
        taken = best(lambda: layer(some, to), seconds)
    return n * kept * pool * taps * c_in * c_out / taken / 1e9


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="seconds per number (default 1)")
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results/designs")
    options = parser.parse_args(argv)
    if lacking := [name for name in cpu_dot.DOT_FORMATS if cpu_dot.missing(name)]:
        print(f"cpu_dot: this processor has no {', '.join(lacking)}", file=sys.stderr)
        return 2
    numba.set_num_threads(1)
    cycles = clock(options.seconds)
    most = {"fp32": 32 * cycles, "bf16": 64 * cycles, "int8": 128 * cycles}
    found: list[dict[str, Any]] = [{"layer": "two instructions a cycle", "giga_products_per_second": most}]
    print(f"{cycles:.2f} GHz:", ", ".join(f"{precision} {value:.0f}" for precision, value in most.items()))
    for name, size in LAYERS.items():
        rates = {precision: rate(size, precision, options.seconds) for precision in ("fp32", "bf16", "int8")}
        found.append({"layer": name, "giga_products_per_second": rates})
        print(f"{name:12}", ", ".join(f"{precision} {value:.0f}" for precision, value in rates.items()), flush=True)
    here = machine.describe()
    folder = options.results_dir or raw.RESULTS / "designs"
    folder.mkdir(parents=True, exist_ok=True)
    result = {"dot": found, "cores": 1, "clock_ghz": cycles, "machine": here, "commit": machine.commit()}
    raw.write(folder / f"{machine.name(here)}-dot.json", "dot", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
