"""Raw results: JSON that says what it is, as `report/schema.py` reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from charcnn.files import replacing

RESULTS = Path(__file__).resolve().parent / "results"


def write(file: Path | str, schema: str, result: Mapping[str, Any]) -> None:
    """Write a result behind the name of its schema: whole, or not at all. Its folder is made where there is none."""
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    with replacing(file, "w") as out:
        json.dump({"schema": schema, **result}, out, indent=1)
        out.write("\n")


def add(file: Path | str, schema: str, parts: Mapping[str, Any]) -> None:
    """Write parts of a result of its schema, beside those that the file has: whole, or not at all."""
    before = json.loads(Path(file).read_text()) if Path(file).exists() else {}
    write(file, schema, {**{name: part for name, part in before.items() if name != "schema"}, **parts})
