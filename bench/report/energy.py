"""What tables of rates say of joules, and the blocks of docs/energy.md: pJ an operation and pJ a byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from report.markdown import link, number, sources, table
from report.schema import ROOT, machine_called, results

Row = dict[str, Any]

TYPES = {"f16": "fp16", "bf16": "bf16", "tf32": "TF32", "e4m3": "FP8 (e4m3)"}
"""PTX's names of types, and the pages'."""

PICTURE = ROOT / "docs" / "pictures" / "what-a-multiplication-costs.svg"

FMA = 2, 16
"""Operations of one in float32, and the bytes of registers that it reads and writes."""


def counted(rows: Iterable[Row]) -> list[Row]:
    """What rows drew, of those of which it was counted."""
    return [row["energy"] for row in rows if "energy" in row]


def joules(row: Row | None) -> str:
    """Of a million; a dash where nobody counted."""
    return number(row["energy"]["joules_per_million"]) if row and "energy" in row else "–"


def beside(text: str, row: Row | None) -> str:
    """A cell's rate, and behind it the joules."""
    return f"{text} ({joules(row)} J)" if row and "energy" in row else text


def spread(of: Row) -> float:
    """Half of how far a row's rounds lie apart, of their mean."""
    values = [one["joules_per_million"] for one in of["rounds"]]
    return (max(values) - min(values)) / 2 / of["joules_per_million"]


def columns(
    rows: Iterable[Row], keys: Iterable[Any], key: Callable[[Row], Any], called: Callable[[Any], str]
) -> dict[Any, str]:
    """Heads of columns of joules, by those keys that a row with joules has."""
    having = {key(row) for row in rows if "energy" in row}
    return {one: f"J a million, {called(one)}" for one in keys if one in having}


def said(rows: Iterable[Row], items: str) -> str:
    """What the joules of a table are; nothing where it has none."""
    if not (every := counted(rows)):
        return ""
    watts = [one["idle_watts"] for one in every]
    idle = " to ".join(dict.fromkeys(map(number, (min(watts), max(watts)))))
    names, many = sorted({one["counter"] for one in every}), sorted({len(one["rounds"]) for one in every})
    return (
        f"\nJoules are those of a million {items}, by {'; '.join(names)}. They include the {idle} W that it draws "
        f"idle. Each is the mean of {' or '.join(map(str, many))} rounds, which lie at most "
        f"{100 * max(map(spread, every)):.1f} % from the middle.\n"
    )


def _parts(name: str) -> list[tuple[Path, Row]]:
    return [(file, raw[name]) for file, raw in results().costs.items() if name in raw]


def _unmeasured(bench: str) -> str:
    return f"No GPU has run this yet: `python bench/{bench}` measures it.\n"


def less_idle(watts: float, per_second: float, idle: float) -> float:
    """pJ of one of so many a second, without what is drawn idle."""
    return (watts - idle) / per_second * 1e12


def energy_operations(document: Path) -> str:
    """pJ an operation of tensor cores by type and share of zeros, and of an FMA in float32."""
    parts = []
    for file, part in _parts("operations"):
        shares = list(dict.fromkeys(row["features"] for row in part["rows"]))
        found = {(row["ptx_type"], row["features"]): row for row in part["rows"]}
        cells = []
        for ptx_type, called in TYPES.items():
            own = [found.get((ptx_type, share)) for share in shares]
            if first := own[0]:
                bare = less_idle(first["W"], first["TFLOP/s"] * 1e12, part["idle_watts"])
                each = [f"{row['pJ']:.3f}" if row else "–" for row in own]
                cells.append([called, *each, f"{bare:.3f}", number(first["TFLOP/s"]), number(first["W"])])
        cells += [fma for of, bytes_ in _parts("bytes") if of == file for fma in _fma(bytes_, len(shares))]
        rounds = [[one["pJ"] for one in row["rounds"]] for row in part["rows"]]
        widest = max((max(of) - min(of)) / sum(of) * len(of) / 2 for of in rounds)
        head = [f"{machine_called(part['machine'])}: pJ an operation", *shares]
        head += ["no zeros, less idle", "TFLOP/s", "W"]
        note = f"\nIdle: {number(part['idle_watts'])} W. Rounds lie at most {100 * widest:.1f} % from the middle.\n"
        parts.append(table(head, cells, right=1) + note + sources(document, [file]))
    if not parts:
        return _unmeasured("tensor_energy.py --zeros")
    return "\n".join([*([_picture(document)] if any(map(whole, results().costs.values())) else []), *parts])


def whole(raw: Row) -> bool:
    """Whether a raw result has both parts, which the picture shows."""
    return {"operations", "bytes"} <= set(raw)


def _picture(document: Path) -> str:
    shown = "Dots: pJ an operation for each type and share of zeros, and pJ a byte for each memory"
    tall = os.path.relpath(PICTURE.with_stem(f"{PICTURE.stem}-tall"), document.parent)
    source = f'<picture><source media="(max-width: 600px)" srcset="{tall}">'
    return f"{source}!{link(document, PICTURE, shown)}</picture>\n"


def _fma(part: Row, shares: int) -> list[list[str]]:
    """The row of float32, which has no tensor cores; no zeros were tried."""
    operations, size = FMA
    rows = []
    for row in part["rows"]:
        if row["memory"] == "registers":
            per_second = row["energy"]["per_second"] * operations / size
            watts = row["energy"]["watts"]
            each = [watts / per_second * 1e12, less_idle(watts, per_second, part["idle_watts"])]
            dashes = ["–"] * (shares - 1)
            cells = [f"{each[0]:.3f}", *dashes, f"{each[1]:.3f}", number(per_second / 1e12), number(watts)]
            rows.append(["float32 by FMA, no tensor cores", *cells])
    return rows


def energy_bytes(document: Path) -> str:
    """pJ a byte that is read, by where it lies."""
    parts = []
    for file, part in _parts("bytes"):
        cells = []
        for row in part["rows"]:
            of, held = row["energy"], f"{row['held']:,} bytes" if row["held"] else "with the FMA"
            each = of["joules_per_million"] * 1e6, less_idle(of["watts"], of["per_second"], part["idle_watts"])
            rate = f"{of['per_second'] / 1e12:.2f}"
            cells.append([row["memory"], held, *(f"{one:.2f}" for one in each), rate, number(of["watts"])])
        head = [f"{machine_called(part['machine'])}: read from", "of", "pJ a byte", "less idle", "TB/s", "W"]
        parts.append(table(head, cells, right=2) + said(part["rows"], "bytes") + sources(document, [file]))
    return "\n".join(parts) or _unmeasured("byte_energy.py")
