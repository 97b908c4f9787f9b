"""Blocks on levels: all of them in a table, and what each costs beside the one that it builds on."""

from __future__ import annotations

from pathlib import Path

from charcnn import catalog
from report import energy
from report.limits import beside_peers, best_peer, limit, predecessor
from report.markdown import UNMEASURED, link, number, percent, sources, table
from report.schema import ROOT, LevelResult, Place, ReportError, places, results

PAGES = ROOT / "docs" / "levels"
HOST = Place("nvidia-h200", 1, 1)
"""Where all levels were measured."""
MORE_RANKS = {"l1": Place("nvidia-h200", 1, 4), "l5": Place("nvidia-h200", 4, 4)}
"""Levels whose idea is to use more of the machine, and where they were measured with it."""


def _page(document: Path, name: str) -> str:
    return link(document, PAGES / f"{name}.md", name)


def headline(document: Path) -> str:
    """The fastest level in half precision beside the fastest other library, in one run."""
    rows = [
        (row["inputs_per_second"], file, row)
        for file, raw in results().peers.items() if raw["device"] == "cuda"
        for row in raw["peers"] if row.get("level") and row["precision"] in ("fp16", "bf16")
    ]  # fmt: skip
    _, file, row = max(rows, key=lambda row: float(row[0]))
    peer, gpu = best_peer(file, row["precision"]), results().peers[file]["machine"]["gpus"][0]
    if peer is None:
        raise ReportError(f"{file.name}: no library beside {row['name']}")
    page = _page(document, row["name"].partition("-")[0])
    others = link(document, ROOT / "docs" / "peers.md", "all libraries")
    return (
        f"**{row['inputs_per_second']:,.0f} inputs a second** on one {gpu} in {row['precision']}: {page} is "
        f"{row['inputs_per_second'] / peer.inputs_per_second:.1f} times as fast as the fastest other library "
        f"({peer.title}, {peer.precision}: {peer.inputs_per_second:,.0f}). Both take batches of {peer.batch:,}, "
        f"from token ids on the GPU to logits there ({link(document, file, 'raw result')}, {others}).\n"
    )


def levels(document: Path) -> str:
    """The table of levels: what each is, how fast, by how much faster, and beside the fastest other library."""
    rows, files = [], []
    drawn = [one.row for level in catalog.LEVELS if (one := results().levels.get((level.name, HOST)))]
    counts = any("energy" in row for row in drawn)
    for level in catalog.LEVELS:
        now = results().levels.get((level.name, HOST))
        if now is None:
            rows.append([_page(document, level.name), level.title, UNMEASURED, "", "", *[""] * counts])
            continue
        times, share = _won(level, now), ""
        files += [now.file, *(results().levels[level.name, place].file for place in _more_ranks(level))]
        if beside := beside_peers(level):
            rate, peer = beside
            share = percent(rate / peer.inputs_per_second)
            files.append(peer.file)
        rows.append([_page(document, level.name), level.title, number(now.inputs_per_second), times, share])
        rows[-1] += [energy.joules(now.row)] * counts
    head = ["level", "idea", "inputs/s", "× before", "of the best other library", *["J a million"] * counts]
    return table(head, rows, 2) + energy.said(drawn, "inputs") + sources(document, dict.fromkeys(files))


def _more_ranks(level: catalog.Level) -> list[Place]:
    return [MORE_RANKS[level.name]] if level.name in MORE_RANKS else []


def _won(level: catalog.Level, now: LevelResult) -> str:
    """How many times as fast as the level that it builds on, with more of the machine, too, where that is its idea."""
    before = predecessor(level.name)
    if before is None:
        return "1"
    won = _times(now, _before(before, HOST)[1])
    for place in _more_ranks(level):
        shared = _times(results().levels[level.name, place], _before(before, place)[1])
        won += f"; {place.gpus} GPUs: {shared}" if place.gpus > 1 else f"; {place.ranks} ranks: {shared}"
    return won


def history(document: Path) -> str:
    """The original program's steps, and what each won there and here."""
    rows, files = [], []
    for level in catalog.LEVELS:
        if level.original is None:
            continue
        before, cells = predecessor(level.name), [f"{level.original:.2f}", "1"]
        if before is not None and before.original is not None:
            cells[1] = f"{level.original / before.original:.2f}"
        if now := results().levels.get((level.name, HOST)):
            files += [now.file, *(results().levels[level.name, place].file for place in _more_ranks(level))]
        cells += [number(now.inputs_per_second), _won(level, now)] if now else [UNMEASURED, ""]
        rows.append([_page(document, level.name), level.title, *cells])
    head = ["level", "idea", "there: inputs/s", "× before", "here: inputs/s", "× before"]
    return table(head, rows, 2) + sources(document, dict.fromkeys(files))


def measured(document: Path) -> str:
    """All levels on all machines, in inputs a second, beside the original program."""
    at, rows = places(), []
    for level in catalog.LEVELS:
        cells = ["–" if level.original is None else f"{level.original:.2f}"]
        found = [results().levels.get((level.name, place)) for place in at]
        cells += [number(result.inputs_per_second) if result else "–" for result in found]
        rows.append([_page(document, level.name), level.title, *cells])
    heads = [results().hosts[place] for place in at]
    files = dict.fromkeys(result.file for result in results().levels.values())
    return table(["level", "idea", "original", *heads], rows, 2) + sources(document, files)


def step(document: Path, name: str) -> str:
    """A level beside the one that it builds on: inputs a second, batch sizes, and the share of the hardware's limit."""
    level, before = next(level for level in catalog.LEVELS if level.name == name), predecessor(name)
    limited = any(limit(level, place) for place in places())
    rows = []
    if level.original is not None:
        cells, now_there = ["the original program"], f"{level.original:.2f}"
        if before is not None and before.original is not None:
            cells += [f"{before.original:.2f}", now_there, f"{level.original / before.original:.2f}"]
        else:
            cells += ["", now_there, ""] if before else [now_there]
        rows.append([*cells, *([""] if limited else [])])
    for place in places():
        now = results().levels.get((name, place))
        if now is None:
            continue
        where = results().hosts[place]
        if level.device == "cpu" and not place.host.startswith("cpu-"):
            where = f"CPU of the host of {where}"
        cells, (was_place, was) = [link(document, now.file, where)], _before(before, place)
        if before is not None:
            there = "" if was_place == place else ", one GPU" if place.gpus > 1 else ", one rank"
            cells.append(f"{number(was.inputs_per_second)} (N={was.batch:,}{there})" if was else UNMEASURED)
        cells.append(f"{number(now.inputs_per_second)} (N={now.batch:,})")
        if before is not None:
            comparable = was_place == place or name in MORE_RANKS
            cells.append(_times(now, was) if comparable else "")
        if limited:
            top = limit(level, place)
            cells.append(percent(now.inputs_per_second / top) if top else "")
        rows.append(cells)
    heads = ["inputs/s (batch)", *([before.name] if before else []), name, *(["×"] if before else [])]
    return table([*heads, *(["of the limit"] if limited else [])], rows, 1) if rows else UNMEASURED + "\n"


def cost(document: Path, name: str) -> str:
    """Where the time goes, stage by stage, beside the level before, and each stage's share of what was saved."""
    level, before = next(level for level in catalog.LEVELS if level.name == name), predecessor(name)
    lines = []
    for place in (place for place in places() if (name, place) in results().levels):
        now = results().levels[name, place]
        was_place, was = _before(before, place)
        if was and not set(was.stages) & set(now.stages):  # nothing to compare
            was = None
        columns = [result for result in (was, now) if result]
        fast = all(result.inputs_per_second > 2_000 for result in columns)
        unit, factor = ("µs", 1e3) if fast else ("ms", 1.0)
        where = results().hosts[place]
        if level.device == "cpu" and not place.host.startswith("cpu-"):
            where = f"CPU of the host of {where}"
        head = [f"{where}: {unit} an input", *([before.name] if was and before else []), name]
        if was and was_place != place:
            head[1] += f" ({results().hosts[was_place]})"
        share = shares(was, now)
        rows = [["whole", *(number(factor * 1e3 / result.inputs_per_second) for result in columns)]]
        for stage in dict.fromkeys(stage for result in columns for stage in result.stages):
            spent = [result.stages.get(stage) for result in columns]
            rows.append([stage, *("" if value is None else number(factor * value) for value in spent)])
            if share:
                rows[-1].append(f"{share[stage]:.0%}".replace("%", " %"))
        if share:
            head.append("of the time saved")
            rows[0].append("")
        lines.append(table(head, rows, 1))
    return "\n".join(lines or [f"Here: {UNMEASURED}.\n"])


def shares(was: LevelResult | None, now: LevelResult) -> dict[str, float]:
    """Each stage's share of the time that stages together lost.

    None where little was lost, or the losses add up to no whole: where stages differ or there is one alone, overlap
    otherwise than before, or one of them takes longer.
    """
    if was is None or set(was.stages) != set(now.stages) or now.inputs_per_second < 1.1 * was.inputs_per_second:
        return {}
    saved = {stage: was.stages[stage] - now.stages[stage] for stage in now.stages}
    alike = 0.8 < _overlap(now) / _overlap(was) < 1.25
    if len(saved) == 1 or not alike or min(saved.values()) < 0:
        return {}
    total = sum(saved.values())
    return {stage: value / total for stage, value in saved.items()}


def _overlap(result: LevelResult) -> float:
    """How many stages ran at a time."""
    return sum(result.stages.values()) * result.inputs_per_second / 1e3


def _times(now: LevelResult, was: LevelResult | None) -> str:
    if was is None:
        return ""
    times = now.inputs_per_second / was.inputs_per_second
    return f"{times:.0f}" if times >= 10 else f"{times:.2f}"


def _before(level: catalog.Level | None, place: Place) -> tuple[Place, LevelResult | None]:
    """The level's result at the place nearest to this one: with fewer GPUs where it uses fewer, else on one rank."""
    if level is not None:
        for ranks in (place.ranks, 1):
            for gpus in (min(place.gpus, level.gpus or place.gpus), 1):
                nearest = Place(place.host, gpus, ranks)
                if found := results().levels.get((level.name, nearest)):
                    return nearest, found
    return place, None
