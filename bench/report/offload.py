"""Blocks of docs/offload.md: the offload over ranks, from bench/results/offload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from charcnn.offload.cost_model import Machine, Work, forecast
from report.markdown import UNMEASURED, number, sources, table
from report.schema import machine_called, offloads


def runs_of(slowed: bool) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Reports of levels by (level, what ran it), with one rank slowed or not."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _, raw in offloads():
        if "validation" in raw and ("slowed_to" in raw) == slowed:
            where = raw["machine"]["gpus"][0] if raw["machine"]["gpus"] else raw["machine"]["cpu"]
            runs.setdefault((raw["level"], where), []).append(raw)
    return runs


def alone_of(runs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The run of one process without MPI: its machine names none, and it gives no advice on ranks."""
    return next((run for run in runs if run["ranks"] == 1 and "advice" not in run), None)


def scaling(document: Path) -> str:
    """A level over ranks, one GPU each, by each way to offload."""
    blocks = []
    for (level, where), runs in runs_of(slowed=False).items():
        alone = alone_of(runs)
        if alone is None:
            continue
        head = [f"{level}, {where}: GPUs", "inputs", "static", "async", "farm", "farm: of as many times one GPU"]
        rows = [["1, no MPI", f"{alone['inputs']:,}", "–", number(alone["inputs_per_second"]), "–", "–", _bound(alone)]]
        for ranks in sorted({run["ranks"] for run in runs if run is not alone}):
            by = {run["offload"]: run for run in runs if run["ranks"] == ranks and run is not alone}
            rates = [
                number(by[mode]["inputs_per_second"]) if mode in by else "–" for mode in ("static", "async", "farm")
            ]
            share = "–"
            if "farm" in by:
                share = f"{by['farm']['inputs_per_second'] / ranks / alone['inputs_per_second']:.1%}"
            shown = by.get("farm") or next(iter(by.values()))
            rows.append([str(ranks), f"{shown['inputs']:,}", *rates, share, _bound(shown)])
        blocks.append(table([*head, "bound by"], rows, 1))
    files = [file for file, raw in offloads() if "validation" in raw and "slowed_to" not in raw]
    return "\n".join(blocks) + sources(document, files) if blocks else UNMEASURED + "\n"


def ranks(document: Path) -> str:
    """Levels on several ranks beside one process, from bench/ranks.py: a table a machine."""
    shown = []
    for file, raw in offloads():
        if raw["schema"] != "ranks":
            continue
        by: dict[str, dict[int, dict[str, Any]]] = {}
        for row in raw["rows"]:
            by.setdefault(row["level"], {})[row["ranks"]] = row
        count, cores, gpus = max(row["ranks"] for row in raw["rows"]), raw["machine"]["cores"], raw["machine"]["gpus"]
        rows = []
        for level, of in by.items():
            if not {1, count} <= of.keys():  # the run was cut
                continue
            alone, more = of[1], of[count]
            rates = [one["inputs_per_second"] for one in (alone, more)]
            rows.append([level, more["offload"], *map(number, rates), f"{rates[1] / rates[0]:.2f}"])
        where = f"{len(gpus)} × {gpus[0]}, {cores} cores" if gpus else machine_called(raw["machine"])
        head = ["level", "offload", "one process, inputs/s", f"{count} ranks, inputs/s", "× one"]
        shown.append(f"{where}:\n\n" + table(head, rows, 2) + sources(document, [file]))
    return "\n".join(shown) or UNMEASURED + "\n"


def whole(document: Path) -> str:
    """Levels by one process that drives all GPUs, and by static and async on a rank a GPU: a table a machine."""
    shown = []
    for file, raw in offloads():
        if raw["schema"] != "whole":
            continue
        by: dict[str, dict[str, float]] = {}
        for row in raw["rows"]:
            way = row["offload"] if row["ranks"] > 1 else "one"
            by.setdefault(row["level"], {})[way] = row["inputs_per_second"]
        rows = [
            [
                level,
                number(of["one"]),
                *(f"{number(of[way])} ({of[way] / of['one']:.1%})" for way in ("static", "async")),
            ]
            for level, of in by.items()
            if {"one", "static", "async"} <= of.keys()  # the run was cut
        ]
        gpus = raw["machine"]["gpus"]
        where = f"{len(gpus)} × {gpus[0]}" if gpus else machine_called(raw["machine"])
        head = [f"{where}, inputs/s", "one process", "a rank a GPU, static", "a rank a GPU, async"]
        shown.append(table(head, rows, 1) + sources(document, [file]))
    return "\n".join(shown) or UNMEASURED + "\n"


def _bound(run: dict[str, Any]) -> str:
    found = run.get("timeline")
    return "–" if found is None else f"{found['bound']} ({found['busy'][found['resource']]['share']:.0%} busy)"


def mixed(document: Path) -> str:
    """Ranks of which one is slowed, beside the ideal sum of their rates."""
    rows, files = [], [file for file, raw in offloads() if "slowed_to" in raw]
    for (level, where), runs in runs_of(slowed=True).items():
        alone = alone_of(runs_of(slowed=False).get((level, where), []))
        for run in runs if alone is not None else []:
            ideal = (run["ranks"] - 1) * alone["inputs_per_second"] + run["slowed_to"]
            rows.append(
                [
                    f"{level}, {run['ranks']} × {where}, one at {run['slowed_to'] / alone['inputs_per_second']:.0%}",
                    run["offload"],
                    number(run["inputs_per_second"]),
                    f"{run['inputs_per_second'] / ideal:.1%}",
                ]
            )
    head = ["ranks", "offload", "inputs/s", "of the ideal sum"]
    return table(head, sorted(rows), 2) + sources(document, files) if rows else UNMEASURED + "\n"


def path(document: Path) -> str:
    """What the root can move, where workers answer without computing."""
    rows, files = [], []
    for file, raw in offloads():
        for way, found in raw.get("path", {}).items():
            where = f"{raw['machine']['cores']} cores, {raw['machine']['mpi']}"
            gigabytes = f"{found['bytes_per_second'] / 1e9:.1f}"
            chunk = f"{found['root_seconds_a_chunk'] * 1e6:.0f}"
            rows.append([where, str(raw["ranks"]), way, gigabytes, chunk])
            files = [*files, file] if file not in files else files
    head = ["machine", "ranks", "offload", "GB/s through MPI", "µs a chunk of few bytes"]
    return table(head, rows, 1) + sources(document, files) if rows else UNMEASURED + "\n"


def strikes(document: Path) -> str:
    """What became of runs whose ranks were killed or stopped."""
    rows, files = [], []
    for file, raw in offloads():
        for kind in raw.get("mode_and_ulfm", []):
            complete, ended = kind.get("complete", 0), kind.get("ended", 0)
            other = kind["runs"] - complete - ended
            counts = [str(count) for count in (kind["runs"], complete, ended, other)]
            rows.append([kind["mode"] + ", ULFM" * kind["ulfm"], *counts, f"{kind['longest']:.0f} s"])
            files = [*files, file] if file not in files else files
    head = ["offload", "runs", "complete", "ended by a line and a status", "hung, lost inputs or else", "longest"]
    return table(head, rows, 1) + sources(document, files) if rows else UNMEASURED + "\n"


def overhead(document: Path) -> str:
    """What the farm adds at one rank."""
    rows, files = [], []
    for file, raw in offloads():
        if "overhead" in raw:
            low, high = raw["quartiles"]
            where = f"{raw['level']}, {raw['machine']['cores']} CPU cores"
            rows.append([where, str(len(raw["pairs"])), f"{raw['overhead']:.2%}", f"{low:.2%} to {high:.2%}"])
            files.append(file)
    for (level, where), runs in runs_of(slowed=False).items():
        alone = alone_of(runs)
        farms = [run for run in runs if run["ranks"] == 1 and run["offload"] == "farm"]
        if alone is not None and farms:
            adds = alone["inputs_per_second"] / farms[0]["inputs_per_second"] - 1
            rows.append([f"{level}, {where}", str(len(alone["seconds"])), f"{adds:.2%}", "–"])
    head = ["level", "pairs of runs", "the farm adds", "quartiles"]
    return table(head, rows, 1) + sources(document, files) if rows else UNMEASURED + "\n"


def forecasts(document: Path) -> str:
    """What the cost model says of the measured runs."""
    rows = []
    ways = [way for _, raw in offloads() if raw["machine"]["gpus"] for way in raw.get("path", {}).values()]
    for (level, where), runs in runs_of(slowed=False).items():
        alone = alone_of(runs)
        if alone is None or not ways:
            continue
        for run in sorted(runs, key=lambda run: (run["ranks"], run["offload"])):
            if run is alone or run["offload"] == "static":
                continue
            machine_ = Machine(
                alone["inputs_per_second"],
                run["ranks"],
                local_link=min(way["bytes_per_second"] for way in ways),
                root_message=max(way["root_seconds_a_chunk"] for way in ways),
            )
            made = forecast(machine_, Work(run["inputs"], chunk=run["batch"]))
            measured = run["inputs_per_second"]
            cells = [
                number(measured),
                number(made.inputs_per_second),
                f"{made.inputs_per_second / measured - 1:+.1%}",
            ]
            rows.append([f"{level}, {run['ranks']} × {where}", run["offload"], *cells, made.bound])
    head = ["GPUs", "offload", "measured, inputs/s", "forecast", "off by", "bound, as forecast"]
    return table(head, rows, 2) if rows else UNMEASURED + "\n"
