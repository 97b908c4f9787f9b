"""The block on matrix products: shapes beside cuBLAS, and the ladder to the fastest kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import energy
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
        drawn: dict[tuple[Any, ...], dict[str, str]] = {}
        for row in raw["gemm"]:
            key = tuple(row["shape"].values()), row["precision"]
            found.setdefault(key, {})[row["made"]] = row["tflop_per_second"]
            drawn.setdefault(key, {})[row["made"]] = _picojoules(row)
        host = machine_called(raw["machine"])
        made = _ladder(host, found, drawn) if what == "ladder" else _shapes(host, found, drawn, what)
        parts.append(made + energy.said(raw["gemm"], "products") + sources(document, [file]))
    return "\n".join(parts) if parts else UNMEASURED + "\n"


def _picojoules(row: dict[str, Any]) -> str:
    """An operation's; nothing where nobody counted."""
    m, n, k = row["shape"].values()
    return f"{row['energy']['joules_per_million'] * 1e6 / (2 * m * n * k):.3f}" if "energy" in row else ""


def _fastest(rates: dict[str, float]) -> str:
    """The name of cuBLAS's faster product."""
    return max((name for name in rates if name.startswith(THEIRS)), key=lambda name: rates[name])


def _best(rates: dict[str, float]) -> float:
    return rates[_fastest(rates)]


def _shapes(
    host: str, found: dict[tuple[Any, ...], dict[str, float]], drawn: dict[tuple[Any, ...], dict[str, str]],
    precision: str,
) -> str:  # fmt: skip
    names, rows = ("mma", "wgmma, as a convolution", "wgmma"), []
    counts = any(filter(None, (text for of in drawn.values() for text in of.values())))
    for (shape, made), rates in found.items():
        if made == precision:
            each = (f"{rates[name]:,.0f}" for name in names)
            sizes = " × ".join(f"{size:,}" for size in shape)
            rows.append([sizes, f"{_best(rates):,.0f}", *each, f"{rates['wgmma'] / _best(rates):.2f}"])
            if counts:
                rows[-1] += [drawn[shape, made][name] for name in (_fastest(rates), "wgmma")]
    head = [f"{host}, {precision}, M × N × K: TFLOP/s", "cuBLAS, the faster of two", *(f"`{name}`" for name in names)]
    head += ["`wgmma` ÷ cuBLAS", *(["pJ an operation: cuBLAS", "`wgmma`"] if counts else [])]
    return table(head, rows, right=1)


def _ladder(
    host: str, found: dict[tuple[Any, ...], dict[str, float]], drawn: dict[tuple[Any, ...], dict[str, str]]
) -> str:
    rows = []
    for name, idea in STEPS.items():
        having = [key for key, rates in found.items() if name in rates and key[1] != "bf16" and len({*key[0]}) == 1]
        if not having:  # a run of the first shapes alone
            continue
        shape, precision = max(having)
        rates = found[shape, precision]
        share = percent(rates[name] / _best(rates))
        rows.append([f"`{name}`", idea, f"{shape[0]:,}³", precision, f"{rates[name]:,.1f}", share])
        rows[-1].append(drawn[shape, precision][name])
    head = [f"step, {host}", "what is new", "shape", "precision", "TFLOP/s", "of cuBLAS", "pJ an operation"]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return table(head, rows, right=4)
