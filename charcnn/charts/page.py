"""The page that `charcnn report` writes: one HTML file, with nothing loaded from elsewhere and no script."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from charcnn import catalog
from charcnn.catalog import measured
from charcnn.charts.history import history
from charcnn.charts.roofline import Point, roofline
from charcnn.charts.stages import stages
from charcnn.charts.svg import short
from charcnn.config import SMALL
from charcnn.host import machine
from charcnn.layers import Node
from charcnn.levels.runner.work import products_of_level

Report = Mapping[str, Any]
"""What `measure.measure` gives."""

GPU = "nvidia-h200"
"""Of the machines whose results ship, the one that the pictures have beside."""

COLOURS = {"l12": "c0", "l13": "c6", "l14": "c3", "l15": "c1", "l16": "c5", "l17": "c2", "l19": "c4"}
"""Of levels in the roofline of a GPU."""

CPU_USES, CPU_RATES = (0.1, 1e4), (1e8, 2e13)
"""FLOP a byte and FLOP a second at the ends of a CPU's roofline."""

STYLE = """
:root { color-scheme: light dark; --text: #24292f; --muted: #57606a; --page: #fff; --line: #d0d7de; --mark: #1a7f37; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --muted: #9da7b1; --page: #0d1117; --line: #30363d; --mark: #3fb950; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 0 auto;
  max-width: 60rem; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
a { color: var(--mark); } p.small, figcaption { color: var(--muted); font-size: .9rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 1rem 0; } figure img { width: 100%; min-width: 30rem; height: auto; }
.big { font-size: 1.3rem; font-weight: 600; }
"""


HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
<h1>{title}</h1>"""


def page(found: Report) -> str:
    """The whole file."""
    where = machine_called(found["machine"])
    ran = {name: row for name, row in found["levels"].items() if "why" not in row}
    head = HEAD.format(title=f"charcnn on {escape(where)}", style=STYLE)
    parts = [head, *_headline(ran), "<h2>How fast</h2>", *_rates(found, ran), *_pictures(found, ran)]
    parts += ["<h2>What does not run here</h2>", *_missing(found), "<h2>The machine</h2>", *_machine(found)]
    return "\n".join([*parts, "</html>", ""])


def machine_called(host: Mapping[str, Any]) -> str:
    """The GPU that levels used, or the processor."""
    return host["gpus"][0] if host["gpus"] else f"{host['cpu'] or 'an unknown processor'}, {host['cores']} cores"


def _headline(ran: Report) -> Iterator[str]:
    if not ran:
        yield "<p>No level gave right logits here.</p>"
        return
    best, slowest = (extreme(ran, key=lambda name: ran[name]["inputs_per_second"]) for extreme in (max, min))
    row = ran[best]
    yield f'<p class="big">{row["inputs_per_second"]:,.0f} inputs a second by {best}, in {escape(row["precision"])}</p>'
    times = row["inputs_per_second"] / ran[slowest]["inputs_per_second"]
    also = f", {times:,.0f} times as many as by {slowest}" if best != slowest else ""
    yield (
        f"<p>{escape(row['title'])}{also}. An input is a text of {SMALL.length:,} characters; all logits were checked "
        "against a float64 reference before a rate was taken.</p>"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> Iterator[str]:
    """An HTML table that scrolls by itself where the page is narrow; cells are HTML, `numbers` the columns of them."""

    def cells(row: Sequence[str], kind: str) -> str:
        numbered = [' class="number"' if place in numbers else "" for place in range(len(row))]
        marked = (f"<{kind}{attribute}>{cell}</{kind}>" for attribute, cell in zip(numbered, row, strict=True))
        return f"<tr>{''.join(marked)}</tr>"

    yield '<div class="wide" tabindex="0"><table>'
    yield f"<thead>{cells(head, 'th')}</thead><tbody>"
    yield from (cells(row, "td") for row in rows)
    yield "</tbody></table></div>"


def _rates(found: Report, ran: Report) -> Iterator[str]:
    """A row a level that ran: its rate, beside the level before and the machines whose results ship."""
    machines = measured.machines()
    head = ["level", "idea", "precision", "inputs/s", "× before", "error, sigma"]
    head += [f"on {escape(_whole(one))}" for one in machines.values()]
    rows = []
    for level in catalog.LEVELS:
        if level.name not in ran:
            continue
        row, before = ran[level.name], level.predecessor
        rate, check = row["inputs_per_second"], row["validation"]
        times = f"{rate / ran[before.name]['inputs_per_second']:.2g}" if before and before.name in ran else "–"
        cells = [
            level.name,
            escape(row["title"]),
            escape(row["precision"]),
            f"{rate:,.4g}" if rate < 100 else f"{rate:,.0f}",
        ]
        cells += [times, f"{check['sigmas']:.2g} of {check['bound']:g}"]
        for one in machines.values():
            shipped = one["levels"].get(level.name)
            alike = shipped is not None and shipped["precision"] == row["precision"]
            cells.append(_beside(rate, shipped["inputs_per_second"]) if alike else "–")
        rows.append(cells)
    yield from table(head, rows, (3, 4, 5, *range(6, 6 + len(machines))))
    yield (
        '<p class="small">Medians of runs from token ids on the host to logits there. "× before" is relative to the '
        "level that it builds on. The last columns have the shipped results, and in brackets this machine's share.</p>"
    )


def _whole(one: Mapping[str, Any]) -> str:
    """A machine whose results ship, with the CPU that its levels for a CPU ran on."""
    return f"{one['called']}, {one['cores']} CPU cores" if one["gpus"] else str(one["called"])


def _beside(rate: float, shipped: float) -> str:
    rate_shipped = f"{shipped:,.4g}" if shipped < 100 else f"{shipped:,.0f}"
    return f"{rate_shipped} ({rate / shipped:.0%})"


def figure(drawn: str, caption: str) -> Iterator[str]:
    """A picture in the page, with a text for those who do not see it: its title, and what is said below."""
    found = re.search(r"<title>(.*?)</title>", drawn)
    title = found[1] if found else ""  # escaped there
    data = base64.b64encode(drawn.encode()).decode()
    alt = f"{title}. {escape(caption)}".replace('"', "&quot;")
    yield f'<figure><div class="wide" tabindex="0"><img alt="{alt}" src="data:image/svg+xml;base64,{data}"></div>'
    yield f"<figcaption>{title}. {escape(caption)}</figcaption></figure>"


def _pictures(found: Report, ran: Report) -> Iterator[str]:
    if not ran:
        return
    where = machine_called(found["machine"])
    shipped = measured.machines()[GPU]
    rates = {name: row["inputs_per_second"] for name, row in ran.items()}
    others = {name: row["inputs_per_second"] for name, row in shipped["levels"].items()}
    legend = [("cpu", "this CPU", 84), ("gpu", "this GPU", 200), ("other", f"{shipped['called']}, and its CPU", 316)]
    drawn = history(
        f"Inputs a second by level on {where}, on a log scale",
        [(level.name, level.device) for level in catalog.LEVELS], rates, others=others, legend=legend,
        precisions={name: row["precision"] for name, row in ran.items()},
    )  # fmt: skip
    yield "<h2>The history</h2>"
    yield from figure(drawn, ", ".join(f"{name}: {short(rate)}" for name, rate in rates.items()))
    yield "<h2>Where the time goes</h2>"
    yield from figure(*_stages(where, {name: (_spent(row), row["inputs_per_second"]) for name, row in ran.items()}))
    yield f"<details><summary>On the {escape(shipped['called'])}</summary>"
    of = {name: (row["stages"], row["inputs_per_second"]) for name, row in shipped["levels"].items()}
    yield from figure(*_stages(f"the {shipped['called']} and its host's CPU", of))
    yield "</details>"
    yield "<h2>How near to the machine's limits</h2>"
    yield from _rooflines(found, ran, where)


def _spent(row: Report) -> dict[str, float]:
    """Milliseconds an input, by stage."""
    return {stage: 1e3 * seconds / row["inputs"] for stage, seconds in row["stages"].items()}


def _stages(where: str, rows: Mapping[str, tuple[Mapping[str, float], float]]) -> tuple[str, str]:
    drawn = stages(f"Where the time goes, level by level, on {where}", [(name, *row) for name, row in rows.items()])
    most = {name: max(spent, key=lambda stage: spent[stage]) for name, (spent, _) in rows.items() if spent}
    return drawn, "The longest stage: " + ", ".join(f"{name} {stage}" for name, stage in most.items())


def _rooflines(found: Report, ran: Report, where: str) -> Iterator[str]:
    """One of the CPU by blocks, one of the GPU by kernels, and the GPU's whose results ship."""
    cpu = [name for name in ran if catalog.level(name).device == "cpu" and ran[name]["precision"] == "fp32"]
    colours = {name: f"c{i % 7}" for i, name in enumerate(cpu)}
    points = [point for name in cpu for point in _blocks(name, ran[name], colours[name])]
    if points:
        drawn = roofline(
            f"Roofline of {found['machine']['cpu']}, {found['machine']['cores']} cores: blocks of levels",
            points, {"fp32": found["cpu"]["flop_per_second"]}, found["cpu"]["bytes_per_second"],
            [(kind, name) for name, kind in colours.items()], uses=CPU_USES, rates=CPU_RATES, called="memory",
        )  # fmt: skip
        yield from figure(drawn, "Roofs are a product of matrices and a copy by NumPy on all cores.")
    profiled = {name: row["profile"] for name, row in ran.items() if row.get("profile", {}).get("peaks")}
    points = [point for name, of in profiled.items() for point in _kernels(name, ran[name]["precision"], of)]
    if points:
        roofs = {ran[name]["precision"]: of["peak_flop_per_second"] for name, of in profiled.items()}
        memory = next(iter(profiled.values()))["peak_bytes_per_second"]
        legend = [(COLOURS[name], f"{name}, {ran[name]['precision']}") for name in profiled]
        drawn = roofline(f"Roofline of {where}: kernels of levels", points, roofs, memory, legend)
        peaks = "; ".join(dict.fromkeys(f"{ran[name]['precision']}: {of['peaks']}" for name, of in profiled.items()))
        yield from figure(drawn, f"Roofs are {peaks}.")
    shipped = measured.machines()[GPU]
    yield f"<details{' open' * (not points)}><summary>Of the {escape(shipped['called'])}</summary>"
    kept = [row for row in shipped["layers"] if row["level"] in COLOURS]
    kept = [row for row in kept if row["precision"] == catalog.level(row["level"]).precision()]
    points = [
        Point(row["flop_per_byte"], row["flop_per_second"], COLOURS[row["level"]], f"{row['level']}, {row['layer']}")
        for row in kept
    ]
    legend = [(kind, f"{name}, {catalog.level(name).precision()}") for name, kind in COLOURS.items()]
    roofs = {"fp32": shipped["units"], **{name: shipped["peaks"][name] for name in ("fp16", "fp8")}}
    drawn = roofline(f"Roofline of an {shipped['called']}: layers of levels", points, roofs, shipped["memory"], legend)
    yield from figure(
        drawn, "Roofs: float32's units at their clock; products of large matrices by cuBLAS; the memory's data sheet."
    )
    yield "</details>"


def _blocks(name: str, row: Report, kind: str) -> Iterator[Point]:
    """Of a level on the CPU: its blocks, features and parameters counted once a batch."""
    spent = _spent(row)
    for stage, nodes in products_of_level(SMALL, list(spent)).items():
        if nodes and not (stage == "conv_block_1" and catalog.level(name).gathered):
            flop = sum(node.flops for node in nodes)
            rate, use = flop / spent[stage] * 1e3, flop / _moved(nodes, row["batch"])
            title = f"{name}, {stage}: {short(rate, 'FLOP/s')} at {use:.0f} FLOP a byte"
            yield Point(use, rate, kind, title)


def _moved(nodes: Sequence[Node], batch: int) -> float:
    """Bytes an input."""
    return sum(node.bytes(batch) for node in nodes) / batch


def _kernels(name: str, precision: str, report: Report) -> Iterator[Point]:
    for row in report["kernels"]:
        if row["flop"] and row["bytes"]:
            rate, use = row["flop"] / row["microseconds"] * 1e6, row["flop"] / row["bytes"]
            title = f"{name}, {row['layer']}, {precision}: {short(rate, 'FLOP/s')} at {use:.0f} FLOP a byte"
            yield Point(use, rate, COLOURS.get(name, "c7"), title)


def _missing(found: Report) -> Iterator[str]:
    whys: dict[str, list[str]] = {}
    for name, row in found["levels"].items():
        if "why" in row:
            whys.setdefault(row["why"], []).append(name)
    if not whys:
        yield "<p>All levels ran.</p>"
        return
    rows = [[", ".join(names), escape(why)] for why, names in whys.items()]
    yield from table(["levels", "why"], rows)


def _machine(found: Report) -> Iterator[str]:
    of = found["machine"]
    rows = [
        ["processor", f"{of['cpu'] or 'unknown'}, {of['cores']} cores"],
        ["GPUs", ", ".join(of["gpus"]) or "none"],
        ["driver", of["driver"] or "none"],
        ["versions", ", ".join(f"{name} {version}" for name, version in of["versions"].items())],
        ["called", machine.name(of)],
        ["charcnn", found["commit"] or "a release"],
    ]
    yield from table(["", ""], [[name, escape(str(value))] for name, value in rows])
    yield '<p class="small">Written by charcnn report. Levels used one GPU at most.</p>'
