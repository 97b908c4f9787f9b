"""Pictures of the bytes of feature maps that fusions leave in DRAM."""

from __future__ import annotations

from itertools import pairwise

from charcnn.charts.svg import Axis, Picture
from report.operators import alexnet_chain, blocks_3_to_6
from report.schema import results

LEFT, RIGHT, TOP, ROW = 150, 92, 36, 34
Bar = tuple[str, list[float], float | None]
"""What it is called, its parts, and what was predicted where it was counted."""


def bytes_of_levels() -> str:
    """What l8 to l10 read and wrote an input, as counted, and what was predicted."""
    (raw,) = results().dram.values()
    bars: list[Bar] = [(level, [row["read"], row["written"]], row["predicted"]) for level, row in raw["dram"].items()]
    title = f"Bytes an input across DRAM of {', '.join(raw['dram'])} on one {raw['machine']['gpus'][0]}"
    return _drawn(title, bars, [("c0", "read"), ("c2", "written"), ("s7 thick", "predicted")])


def bytes_of_chains() -> str:
    """Plans of blocks 3 to 6, and of AlexNet's first two layers: bytes of feature maps an input."""
    whole, pairs = blocks_3_to_6("whole"), blocks_3_to_6("pairs")
    images = alexnet_chain("whole", "fp16")
    bars: list[Bar] = [
        ("a kernel a layer", [images.unfused_bytes], None),
        ("a kernel a convolution", [images.weakly_fused_bytes], None),
        ("one kernel", [images.dram_bytes], None),
        ("a kernel a layer", [whole.unfused_bytes], None),
        ("two fused pairs", [pairs.dram_bytes], None),
        ("one kernel", [whole.dram_bytes], None),
    ]
    titles = {0: "AlexNet's first two layers, an image", 3: "this network's blocks 3 to 6, an input"}
    return _drawn("Bytes of feature maps that cross DRAM, by how convolutions are fused", bars, [], titles)


def _drawn(title: str, bars: list[Bar], entries: list[tuple[str, str]], titles: dict[int, str] | None = None) -> str:
    """Bars, each group of `titles` below its own and on a scale of its own."""
    titles = titles or {0: ""}
    head = 30 if any(titles.values()) else 0
    picture = Picture(title, TOP + ROW * len(bars) + head * len(titles) - (0 if entries else 24))
    picture.legend(entries, LEFT, 14, 110)
    y = float(TOP if entries else 12)
    begins = [*titles, len(bars)]
    for begin, end in pairwise(begins):
        if titles[begin]:
            picture.text(4, y + 10, titles[begin], "said")
            y += head
        most = max(max(sum(parts), predicted or 0) for _, parts, predicted in bars[begin:end])
        across = Axis(0, most, LEFT, picture.width - RIGHT, log=False)
        for name, parts, predicted in bars[begin:end]:
            _bar(picture, across, y, name, parts, predicted)
            y += ROW
    return str(picture)


def _bar(picture: Picture, across: Axis, y: float, name: str, parts: list[float], predicted: float | None) -> None:
    picture.text(LEFT - 8, y + 15, name, "said" if len(name) < 8 else "small said", "end")
    x = across.begin
    for kind, part in zip(("c0", "c2"), parts, strict=False):
        picture.rect(x, y, across(part) - across.begin, ROW - 12, kind, f"{name}: {part:,.0f} bytes")
        x += across(part) - across.begin
    if predicted:
        picture.line(across(predicted), y - 4, across(predicted), y + ROW - 8, "s7 thick")
        x = max(x, across(predicted))
    total = sum(parts)
    picture.text(x + 6, y + 15, f"{total / 1e6:.2f} MB" if total >= 1e6 else f"{total / 1e3:.0f} kB")
