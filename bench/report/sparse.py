"""The blocks of docs/sparse.md: what 2:4 sparse products and weights cost, and what the gates say of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from report.markdown import link, number, table
from report.schema import RESULTS, read

FILE = RESULTS / "designs" / "nvidia-h200-sparse.json"

MOST = 1.4
"""Of a dense operation's energy, what a sparse one may cost; more ends the plan."""

LEAST = 0.912
"""Accuracy on AG News' test rows that a sparse model has to reach."""


FASTER = 1.25
"""Than the tuned dense kernel, that conv3 by sparse weights has to be."""

GOALS = {"fp16": 1.15, "fp8": 1.06}
"""Rates relative to l19 with dense weights that l22 is asked for."""

NAMED = ("ptx_type", "weights", "features", "columns", "warpgroups")
"""What a row of products is found by."""


def _part(name: str) -> dict[str, Any] | None:
    part: dict[str, Any] | None = read(FILE).get(name) if FILE.exists() else None
    return part


def _source(document: Path, part: dict[str, Any]) -> str:
    return f"{part['machine']['gpus'][0]}, driver {part['machine']['driver']}. {link(document, FILE, 'Raw result')}.\n"


def _per_round(row: dict[str, Any], name: str) -> str:
    values = [one[name] for one in row["rounds"]]
    return f"{number(min(values))} to {number(max(values))}"


def sparse_products(document: Path) -> str:
    """Rates, W and pJ an operation of dense and sparse products, and the second gate."""
    part = _part("products")
    if part is None:
        return "No GPU has run this yet: `python bench/tensor_energy.py` measures it.\n"
    found = {tuple(row[name] for name in NAMED): row for row in part["rows"]}
    head = [
        "type, N, warpgroups, features", "weights", "executed TFLOP/s", "as dense TFLOP/s", "W", "MHz",
        "pJ an operation (rounds)", "× dense",
    ]  # fmt: skip
    rows = []
    for (ptx_type, weights, *others), row in found.items():
        ratio = row["pJ"] / found[(ptx_type, "dense", *others)]["pJ"]
        features, columns, warpgroups = others
        rows.append([
            f"{ptx_type}, {columns}, {warpgroups}, {features}", weights, number(row["TFLOP/s"]),
            number(row["dense TFLOP/s"]), number(row["W"]), number(row["MHz"]),
            f"{row['pJ']:.3f} ({_per_round(row, 'pJ')})", f"{ratio:.2f}",
        ])  # fmt: skip
    decides = "f16", "relu", 256, 2
    sparse, dense = (found[(decides[0], weights, *decides[1:])]["pJ"] for weights in ("sparse", "dense"))
    verdict = "passed" if sparse <= MOST * dense else "not passed, so the plan ends here"
    said = f"**Gate 2 is {verdict}**: in fp16 after ReLU, with 256 columns and two warpgroups, a sparse operation took"
    return f"{said} {sparse / dense:.2f} × the energy of a dense one; at most {MOST} were allowed.\n\n" + (
        table(head, sorted(rows), right=2) + "\n" + _source(document, part)
    )


def sparse_conv3(document: Path) -> str:
    """Rates and millijoules of conv3 by dense and sparse kernels, and the third gate."""
    part = _part("conv3")
    if part is None:
        return "No GPU has run this yet: `python bench/sparse_conv.py` measures it.\n"
    found = {(row["features"], row["weights"]): row for row in part["rows"]}
    head = ["features, weights", "as dense TFLOP/s", "× dense", "mJ a call (rounds)", "W"]
    rows = []
    for (features, weights), row in found.items():
        watts = sum(one["W"] for one in row["rounds"]) / len(row["rounds"])
        rate, of = row["tflop_per_second"], found[(features, "dense")]["tflop_per_second"]
        cells = [f"{features}, {weights}", number(rate), f"{rate / of:.2f}", _per_round(row, "mJ"), number(watts)]
        rows.append(cells)
    sparse, dense = (found[("relu", weights)]["tflop_per_second"] for weights in ("sparse", "dense"))
    verdict = "passed" if sparse >= FASTER * dense else "not passed, so the plan ends here"
    said = f"**Gate 3 is {verdict}**: after ReLU, conv3 by sparse weights runs {sparse / dense:.2f} × as fast as by the"
    said += f" tuned dense kernel; {FASTER} × are asked for."
    return f"{said}\n\n{table(head, rows, right=1)}\n{_source(document, part)}"


def _weights(part: dict[str, Any], named: Callable[[dict[str, Any]], str], head: str) -> str:
    """Accuracy, rates and joules, a row each, relative to dense weights in l19."""
    dense = {
        row["precision"]: row for row in part["rows"] if (row.get("level", "l19"), row["model"]) == ("l19", "dense")
    }
    titles = [head, "right on test rows (95 %)", "inputs/s", "× dense", "J a million inputs (rounds)", "× dense"]
    rows = []
    for row in part["rows"]:
        low, high = (100 * bound for bound in row["interval"])
        of = dense[row["precision"]]
        rows.append([
            named(row), f"{100 * row['accuracy']:.2f} % ({low:.2f} to {high:.2f})",
            number(row["inputs/s"]), f"{row['inputs/s'] / of['inputs/s']:.3f}",
            f"{number(row['J/million'])} ({_per_round(row, 'J/million')})",
            f"{row['J/million'] / of['J/million']:.3f}",
        ])  # fmt: skip
    return table(titles, rows, right=1)


def sparse_level(document: Path) -> str:
    """Accuracy, rates and joules of levels by sparse and by dense kernels."""
    part = _part("level")
    if part is None:
        return "No GPU has run this yet: `python bench/sparse_weights.py` measures it.\n"
    rate = {(row["level"], row["precision"], row["model"]): row["inputs/s"] for row in part["rows"]}
    found = []
    for precision, goal in GOALS.items():
        sparse = max(value for (level, of, _), value in rate.items() if (level, of) == ("l22", precision))
        ratio = sparse / rate["l19", precision, "dense"]
        found.append(
            f"In {precision}, l22 computes {ratio:.2f} × as many inputs/s as l19 with dense weights: {goal} × were"
        )
    rows = _weights(
        part, lambda row: f"{row['level']}, {row['precision']}, {row['model']}", "level, precision, weights"
    )
    return f"{' asked for. '.join(found)} asked for.\n\n{rows}\n{_source(document, part)}"


def texts_a_joule(document: Path) -> str:
    """What a joule labels, by level and precision; l22 by the weights that it labels most by."""
    part = _part("level")
    if part is None:
        return "No GPU has run this yet: `python bench/sparse_weights.py` measures it.\n"
    most: dict[tuple[str, str], float] = {}
    for row in part["rows"]:
        if row["level"] == "l22" or row["model"] == "dense":
            where = row["level"], row["precision"]
            most[where] = max(most.get(where, 0.0), 1e6 / row["J/million"])
    names = sorted({level for level, _ in most}, key=lambda level: most[level, "fp16"])
    cells = [[f"[{name}](levels/{name}.md)", *(f"{most[name, of]:,.0f}" for of in GOALS)] for name in names]
    said = (
        f"**A joule labels {most['l19', 'fp16']:,.0f} texts** by l19 in fp16, {most['l22', 'fp8']:,.0f} by l22 in fp8."
    )
    return f"{said}\n\n{table(['texts a joule', *GOALS], cells, right=1)}\n{_source(document, part)}"


def sparse_weights(document: Path) -> str:
    """Accuracy, rates and joules of dense and sparse weights in dense kernels, and the first gate."""
    part = _part("weights")
    if part is None:
        return "No GPU has run this yet: `python bench/sparse_weights.py` measures it.\n"
    trained = [row for row in part["rows"] if row["command"] and row["model"] != "dense" and row["precision"] == "fp16"]
    said = "**Gate 1 has no trained model yet.**"
    if trained:
        best = max(row["accuracy"] for row in trained)
        verdict = "passed" if best >= LEAST else "not passed, so the plan ends here"
        said = f"**Gate 1 is {verdict}**: after masked training the best model has {100 * best:.2f} % right in fp16,"
        said += f" where {100 * LEAST:.1f} % are asked for."
    commands = "".join(f"- {row['model']}: `{row['command']}`\n" for row in trained)
    rows = _weights(part, lambda row: f"{row['precision']}, {row['model']}", "l19, weights")
    return f"{said}\n\n{rows}\n{_source(document, part)}" + (commands and f"\n{commands}")
