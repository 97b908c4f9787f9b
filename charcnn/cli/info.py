"""Show the machine, its GPUs, and which level would run in each precision, and why."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from charcnn.aliases import Record
from charcnn.cli import DONE
from charcnn.host.terminal import printable

if TYPE_CHECKING:
    from charcnn.model.params import Params

EPILOG = """examples:
  charcnn info
  charcnn info model.safetensors
  charcnn info --json

exit status: 0 done; 1 failed while working; 2 unusable options or files"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model and --json."""
    parser.epilog = EPILOG
    which = parser.add_mutually_exclusive_group()
    which.add_argument("file", nargs="?", metavar="MODEL", help="also show what this model says of itself")
    which.add_argument("--model", metavar="FILE", help="the same")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Tell; the exit status."""
    from charcnn import catalog
    from charcnn.classify import engine
    from charcnn.gpu import backend
    from charcnn.host import machine
    from charcnn.model import shipped
    from charcnn.ops.common import cpu_dot, cpu_tile, threads
    from charcnn.ops.common.cpu_dot_gemm import unit

    backend.check()
    described = machine.describe()
    device, reason = engine.default_device()
    runs = {str(precision or "default"): _runs(device, precision) for precision in (None, *catalog.PRECISIONS)}
    tile = next(name for name, tile in cpu_tile.TILES.items() if tile == cpu_tile.choose_tile())
    report: Record = {
        "machine": described,
        "backend": backend.NAME,
        "device": device,
        "reason": reason,
        "precisions": runs,
        "cpu_tile": tile,
        "cpu_dot_products": {precision: unit(precision) for precision in cpu_dot.DOT_FORMATS},
        "threading_layer": threads.layer(),
    }
    path = options.file or options.model
    if path is not None:
        model = shipped.load(path)
        report["model"] = {
            "config": model.config.to_dict(),
            "parameters": model.config.parameters,
            "encoding": None if model.encoding is None else model.encoding.name,
            "classes": model.classes,
            "metadata": model.metadata,
        }
    if options.json:
        print(json.dumps(report, indent=1, allow_nan=False))
        return DONE
    print(f"cpu       {described['cpu']}, {described['cores']} cores, {tile} tile, threads by {threads.layer()}")
    units = ", ".join(f"{precision}: {name or 'none'}" for precision, name in report["cpu_dot_products"].items())
    print(f"cpu units {units}")
    print(f"gpus      {', '.join(described['gpus']) or 'none'}")
    print(f"driver    {described['driver'] or 'none'}")
    print(f"compiler  {'none' if backend.MISSING else backend.NAME}")
    print(f"versions  {', '.join(f'{name} {version}' for name, version in described['versions'].items())}")
    print(f"device    {device}: {reason}")
    print("\nwhat runs by default, and in each precision")
    for precision, choice in runs.items():
        print(f"  {precision:<8}  {choice}")
    if path is not None:
        print("\nmodel")
        others = {name: value for name, value in model.metadata.items() if name != "live"}
        for line in _indented(report["model"] | {"metadata": others, "live": _live(model)}):
            print(line)
    return DONE


WIDE, DEEP = 100, 8
"""Characters of a line; blanks before what is laid out no further, as whoever wrote a file may nest what it holds."""


def _indented(values: Mapping[str, Any], by: int = 2) -> Iterator[str]:
    """JSON values for people: those of an object below its name."""
    for name, value in values.items():
        head = f"{' ' * by}{printable(name)}"
        if isinstance(value, Mapping) and any(isinstance(inner, Mapping) for inner in value.values()) and by < DEEP:
            yield head
            yield from _indented(value, by + 2)
            continue
        text = printable(" ".join(_said(value).split()))
        yield from textwrap.wrap(text, WIDE, initial_indent=f"{head}  ", subsequent_indent=" " * (by + 4)) or [head]


def _said(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping) and not any(isinstance(inner, Mapping) for inner in value.values()):
        return ", ".join(f"{name} {_said(inner)}" for name, inner in value.items())
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _live(model: Params) -> str:
    """How many channels and units of each layer fire, as the model's file says."""
    said = model.metadata.get("live")
    if not isinstance(said, dict):
        return "the file does not say how many channels fire; `charcnn compact` counts them"
    shapes = model.config.parameter_shapes
    layers = [name for name in said if f"{name}.weight" in shapes]
    counts = ", ".join(f"{name} {said[name]} of {shapes[f'{name}.weight'][0]}" for name in layers)
    return f"{counts}; on any of {said.get('rows')} rows"


def _runs(device: str, precision: str | None) -> str:
    """The level that would compute, or why none can."""
    from charcnn.classify import engine

    try:
        found = engine.choices(device, precision)
    except ValueError as error:
        return str(error)
    against = [engine.obstacle(choice) for choice in found]
    return next((str(choice) for choice, why in zip(found, against, strict=True) if why is None), str(against[0]))
