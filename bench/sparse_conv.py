"""conv3 with 2:4 sparse weights, relative to the tuned dense kernel: rates, W and joules, 4,096 inputs in fp16.

Dense kernels (`WgmmaConv`) and sparse ones (`SparseConv`) are checked against the float64 reference, and take turns.
It needs a Hopper GPU, and adds to results/designs/MACHINE-sparse.json.

Exit status: 0 measured, 1 a result is wrong, 2 unusable machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import energy
import numpy as np
import raw
import steps
from tensor_energy import FEATURES
from turns import Ready, by_turns

from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.sparse import pruned
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.wgmma_sparse.layer import SparseConv

WARM, SECONDS, ROUNDS = 0.3, 1.5, 2

CALLS = 10
"""Of a kernel that are waited for together."""


def kernels(product: steps.Product) -> list[Ready]:
    """The tuned kernel by dense weights and by pruned ones, and the sparse one; each checked, as a graph."""
    dense = product.weight
    found, zeros = [], pruned(dense, 1)
    for name, weight, made in (
        ("dense", dense, WgmmaConv), ("dense, zeros", zeros, WgmmaConv), ("sparse", zeros, SparseConv),
    ):  # fmt: skip
        product.weight, weights = weight, {"weight": weight, "bias": product.bias}
        conv: WgmmaConv | SparseConv = made(pattern_of(weight, "relu", 1), weights, precision="fp16")
        found.append(product.kernel("wgmma", name, "conv1d_relu", conv.apply))
    return found


def measure(batch: int, features: str) -> list[dict[str, Any]]:
    """Rows by turns, with what each draws, of normal features, or of those behind a ReLU."""
    product = steps.Product(steps.MEASURED[1], batch)
    if features == "relu":
        product.drawn = np.maximum(product.drawn, 0)
        product.x = device.to_device(product.drawn[np.arange(batch) % steps.DRAWN])
    ready, counter = kernels(product), energy.Counter()
    rows = [
        {**row, "features": features, "weights": row["step"], "rates": row["rounds"], "rounds": []}
        for row in by_turns(ready)
    ]
    for _ in range(ROUNDS):
        for one, row in zip(ready, rows, strict=True):

            def start(one: Ready = one) -> Callable[[], object]:
                for _ in range(CALLS):
                    one.call()
                return energy.marked()

            drawn = energy.drawn(start, counter, warm=WARM, seconds=SECONDS)
            joules = drawn.joules / (drawn.calls * CALLS)
            row["rounds"].append({"mJ": 1e3 * joules, "W": drawn.joules / drawn.seconds, "MHz": drawn.mhz})
    return rows


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--results-dir", default=raw.RESULTS / "designs", metavar="DIR", type=Path)
    parser.add_argument("--batch", default=4096, type=int, metavar="N", help="inputs (default 4096)")
    options = parser.parse_args()
    if device.SIMULATED or not device.has_tensor_cores(hopper=True):
        print("sparse_conv: needs a Hopper GPU", file=sys.stderr)
        return 2
    rows, here = [row for one in FEATURES for row in measure(options.batch, one)], machine.describe()
    for row in rows:
        print(row, flush=True)
    file = options.results_dir / f"{machine.name(here)}-sparse.json"
    raw.add(file, "sparse", {"conv3": {"machine": here, "commit": machine.commit(), "rows": rows}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
