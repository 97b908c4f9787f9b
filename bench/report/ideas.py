"""What each idea of a level won: from the ladders, and from trials of kernels in bench/results/designs."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

from report.ladder import MMA, WGMMA, idea_of, rates
from report.levels import HOST, predecessor, shares
from report.markdown import link, number, percent, sources, table
from report.schema import RESULTS, ReportError, results

DESIGNS = RESULTS / "designs"
STARTS, TURNS, ONE_INPUT = (
    DESIGNS / f"nvidia-h200-{name}.json" for name in ("wgmma-starts", "wgmma-turns", "one-input")
)
TUNED = "tuned kernel"


@cache
def trials(file: Path) -> tuple[dict[str, Any], ...]:
    """All rows of a trial's runs, each with its run's number, as rates of two runs are not compared."""
    found = json.loads(file.read_text(encoding="utf-8"))
    runs = found.get("runs", [found])
    return tuple(
        {"run": i} | row for i, run in enumerate(runs) for key in ("designs", "rows") for row in run.get(key, ())
    )


def trials_of(file: Path, **named: Any) -> list[dict[str, Any]]:
    """The rows with these values; of `design`, those that begin so."""

    def fits(row: dict[str, Any]) -> bool:
        return all(
            str(row.get(key, "")).startswith(value) if key == "design" else row.get(key) == value
            for key, value in named.items()
        )

    return [row for row in trials(file) if fits(row)]


def _rate(file: Path, key: str = "inputs_per_second", **named: Any) -> float:
    """Of the one row with these values."""
    found = trials_of(file, **named)
    if len(found) != 1:
        raise ReportError(f"{file.name}: {len(found)} rows have {named}: need one")
    return float(found[0][key])


def _share(times: float, of: float) -> str:
    """A factor's share of a product of factors, by their logarithms, which add up."""
    return percent(math.log(times) / math.log(of)).replace("-", "−")


def ideas(document: Path, name: str) -> str:
    """What each idea of a level won, where it was measured apart."""
    found = {"l15": _ideas_15, "l16": _ideas_16}
    if name not in found:
        raise ReportError(f"{document.name}: no ideas of {name} were measured apart: need one of {', '.join(found)}")
    return found[name](document)


def _ideas_15(document: Path) -> str:
    """Steps from level 14's kernel to level 15's, all in one run; and in which stages of the network they count."""
    (before_file, _, before), (file, batch, after) = rates(MMA), rates(WGMMA)
    layers = ("conv2", "conv3")
    steps = [step for step in after if step in WGMMA.layer.steps and after[step].keys() >= set(layers)]
    path = [before[TUNED], *(after[step] for step in steps), after[TUNED]]
    told = ["l14's kernel", *(_step(document, step) for step in steps), "all else of the tuned kernel"]
    whole = {layer: path[-1][layer] / path[0][layer] for layer in layers}
    rows, was = [], None
    for idea, now in zip(told, path, strict=True):
        rows.append([idea])
        for layer in layers:
            times = now[layer] / was[layer] if was else None
            rows[-1] += [number(now[layer]), *((f"{times:.2f}", _share(times, whole[layer])) if times else ("", ""))]
        was = now
    rows.append(["**all**", *(cell for layer in layers for cell in ("", f"**{whole[layer]:.2f}**", ""))])
    head = [f"idea: fp16, N={batch:,} before and after"]
    head += [cell for layer in layers for cell in (f"{layer}: TFLOP/s", "×", "share")]
    return f"{_stages('l15')}\n\n{table(head, rows, 1)}{sources(document, [before_file, file])}"


def _step(document: Path, step: str) -> str:
    return f"{link(document, WGMMA.folder / f'{step}.py', step)}: {idea_of(WGMMA, step)}"


def _stages(name: str) -> str:
    """Of which stages the time is that a level saved, the largest first."""
    before = predecessor(name)
    now = results().levels[name, HOST]
    found = shares(results().levels[before.name, HOST] if before else None, now)
    if not found:
        raise ReportError(f"{name}: its stages' losses add up to no whole")
    told = sorted(found.items(), key=lambda item: -item[1])
    return f"Of the time saved: {', '.join(f'{stage} {percent(share)}' for stage, share in told)}."


def _ideas_16(document: Path) -> str:
    """Starts, a third stream and small-batch kernels, each beside what it was measured with."""
    now, was = (results().levels[level, HOST] for level in ("l16", "l15"))
    graph = [_rate(STARTS, level=level, precision="bf16", batch=4096, design="also") for level in ("l15", "l16")]
    streams = [_rate(TURNS, "host_to_host", precision="fp16", streams=streams) for streams in (2, 3)]
    one = {row["name"]: row["inputs_per_second"] for row in trials(ONE_INPUT)}
    own = [was.inputs_per_second, now.inputs_per_second]
    alone, small = [[one[f"{level}{of}"] for level in ("l15", "l16")] for of in ("-fp16x3", "")]
    whole, rest = _times(own), _times(own) / _times(graph) / _times(streams)
    lines = [
        ("4,096", "one start a batch: bf16, ids on the GPU", STARTS, graph, _times(graph), whole),
        ("4,096", "a third stream: fp16, ids on the host", TURNS, streams, _times(streams), whole),
        ("4,096", "not timed apart", None, None, rest, whole),
        ("4,096", "**all**: fp16, ids on the host", now.file, own, whole, None),
        ("1", "one start: fp16x3, then without small-batch kernels", ONE_INPUT, alone, _times(alone), _times(small)),
        ("1", "small-batch kernels, at most", None, None, _times(small) / _times(alone), _times(small)),
        ("1", "**all**: fp16, ids on the GPU", ONE_INPUT, small, _times(small), None),
    ]  # fmt: skip
    rows = []
    for batch, told, file, pair, times, of in lines:
        cells = [number(value) for value in pair] if pair else ["", ""]
        share, where = _share(times, of) if of else "", link(document, file, "raw") if file else ""
        rows.append([batch, told, *cells, f"{times:.0f}" if times >= 10 else f"{times:.2f}", share, where])
    return table(["N before and after", "idea", "before", "after", "×", "share", ""], rows, 2)


def _times(pair: list[float]) -> float:
    before, after = pair
    return after / before
