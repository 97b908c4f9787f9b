"""The block of docs/levels/l20.md that shows what AMX gives beside AVX-512, by level and by layer."""

from __future__ import annotations

import os
from pathlib import Path

from report.markdown import number, table
from report.schema import RESULTS, ReportError, read

FORMS = {"avx512": "AVX-512", "amx": "AMX"}


def amx(document: Path) -> str:
    """Level 20's rates, and its layers' products a second, by either."""
    file = RESULTS / "designs" / "cpu-2-cores-amx.json"
    result = read(file)
    if wrong := [check for check in result["checks"] if check["wrong"]]:
        raise ReportError(f"{file.name}: results are wrong: {wrong}")
    columns = [(precision, form) for precision in ("int8", "bf16") for form in FORMS]
    head = ["", *(f"{precision}, {FORMS[form]}" for precision, form in columns)]
    rates = {(row["precision"], row["form"], row["n"]): number(row["inputs_per_second"]) for row in result["levels"]}
    rows = [[f"l20, N={n}: inputs/s", *(rates[(*column, n)] for column in columns)] for n in (32, 1)]
    found = {(row["layer"], row["n"], row["precision"], row["form"]): row["giga_products"] for row in result["layers"]}
    for layer, n in (("conv2", 32), ("conv3", 32), ("fc1", 32), ("fc1", 1)):
        cells = [f"{found[(layer, n, *column)]:,.0f}" for column in columns]
        rows.append([f"{layer}, N={n}: 10⁹ products/s", *cells])
    link = os.path.relpath(file, document.parent)
    return table(head, rows, right=1) + f"\n{result['cores']} cores of an {result['cpu']}. [Raw result]({link}).\n"
