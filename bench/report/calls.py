"""The block on calls from Python: what the host takes for one, from arrays of each library."""

from __future__ import annotations

from pathlib import Path

from report.markdown import UNMEASURED, sources, table
from report.schema import machine_called, results

LIBRARIES = ("Numba", "PyTorch", "CuPy")


def calls(document: Path) -> str:
    """A table for each machine: calls by library, in microseconds; those of others first."""
    parts = []
    for file, raw in results().calls.items():
        found: dict[str, dict[str, float]] = {}
        for row in sorted(raw["calls"], key=lambda row: row["kind"] != "peer"):
            found.setdefault(row["name"], {})[row["arrays"]] = row["microseconds"]
        cells = [
            [name, *(f"{times[library]:,.1f}" if library in times else "–" for library in LIBRARIES)]
            for name, times in found.items()
        ]
        parts.append(
            f"{machine_called(raw['machine'])}, microseconds until a call returns, by whose arrays it is given, "
            f"median of {raw['median_of']:,} in drawn order:\n\n"
            f"{table(['call', *LIBRARIES], cells, right=1)}{sources(document, [file])}"
        )
    return "\n".join(parts) if parts else UNMEASURED + "\n"
