"""The block on matrix products: shapes beside cuBLAS, and the ladder to the fastest kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report.markdown import UNMEASURED, percent, sources, table
from report.schema import machine_called, results

THEIRS = "cuBLAS"

STEPS = {
    "linear_naive": "a thread an output, float32",
    "linear_nlc_double_buffered": "tiles in shared memory and registers, float32",
    "mma": "tensor cores by mma.sync",
    "one_warpgroup": "wgmma: a warpgroup multiplies what it copied",
    "tma": "TMA copies",
    "two_warpgroups": "two warpgroups share B",
    "ring": "a ring of stages",
    "warp_specialised": "a producer warpgroup",
    "persistent": "a block goes on from tile to tile",
    "clustered": "two blocks share B",
    "wgmma, as a convolution": "the tuned kernel of convolutions",
    "wgmma": "tiles in bands, results stored under the next tile",
}
"""The ladder: what is new in each. A step on taps, of which a product has one, is left out."""


def gemm(document: Path, what: str) -> str:
    """A table for each machine: of a precision the shapes, or of "ladder" the largest shape that each step multiplied.

    A share is of the fastest cuBLAS at the same shape, in the same precision.
    """
    parts = []
    for file, raw in results().gemm.items():
        found: dict[tuple[Any, ...], dict[str, float]] = {}
        for row in raw["gemm"]:
            key = tuple(row["shape"].values()), row["precision"]
            found.setdefault(key, {})[row["made"]] = row["tflop_per_second"]
        host = machine_called(raw["machine"])
        made = _ladder(host, found) if what == "ladder" else _shapes(host, found, what)
        parts.append(made + sources(document, [file]))
    return "\n".join(parts) if parts else UNMEASURED + "\n"


def _best(rates: dict[str, float]) -> float:
    return max(rate for name, rate in rates.items() if name.startswith(THEIRS))


def _shapes(host: str, found: dict[tuple[Any, ...], dict[str, float]], precision: str) -> str:
    names = ("mma", "wgmma, as a convolution", "wgmma")
    rows = []
    for (shape, made), rates in found.items():
        if made == precision:
            each = (f"{rates[name]:,.0f}" for name in names)
            sizes = " × ".join(f"{size:,}" for size in shape)
            rows.append([sizes, f"{_best(rates):,.0f}", *each, f"{rates['wgmma'] / _best(rates):.2f}"])
    head = [f"{host}, {precision}, M × N × K: TFLOP/s", "cuBLAS, the faster of two", *(f"`{name}`" for name in names)]
    return table([*head, "`wgmma` ÷ cuBLAS"], rows, right=1)


def _ladder(host: str, found: dict[tuple[Any, ...], dict[str, float]]) -> str:
    rows = []
    for name, idea in STEPS.items():
        shape, precision = max(
            key for key, rates in found.items() if name in rates and key[1] != "bf16" and len({*key[0]}) == 1
        )
        rates = found[shape, precision]
        share = percent(rates[name] / _best(rates))
        rows.append([f"`{name}`", idea, f"{shape[0]:,}³", precision, f"{rates[name]:,.1f}", share])
    head = [f"step, {host}", "what is new", "shape", "precision", "TFLOP/s", "of cuBLAS"]
    return table(head, rows, right=4)
