"""The picture of a level on several GPUs, by each way to offload."""

from __future__ import annotations

from charcnn.charts.svg import Axis, Picture, short
from report.offload import alone_of, runs_of

KINDS = {"farm": ("c2", "s2"), "async": ("c1", "s1"), "static": ("c0", "s0")}
LEFT, RIGHT, TOP, BOTTOM, HEIGHT = 66, 84, 22, 46, 340


def scaling() -> str:
    """Inputs a second on 1, 2 and 4 GPUs, a rank each; dashed, as many times one GPU without MPI."""
    (((level, gpu), runs),) = [found for found in runs_of(slowed=False).items() if alone_of(found[1])]
    alone = alone_of(runs)
    rate = alone["inputs_per_second"]
    others = [run for run in runs if run is not alone]
    most = max(run["ranks"] for run in others)
    picture = Picture(f"Inputs a second of {level} on several {gpu}s, a rank each, by way to offload", HEIGHT)
    across = Axis(0.5, most, LEFT, picture.width - RIGHT, log=False)
    up = Axis(0, 1.05 * most * rate, HEIGHT - BOTTOM, TOP, log=False)
    step = 10 ** (len(str(int(most * rate))) - 1)
    for value in range(0, int(up.high), step):
        picture.line(LEFT, up(value), across.end, up(value))
        picture.text(LEFT - 8, up(value) + 4, short(value) if value else "0", anchor="end")
    picture.text(4, TOP - 8, "inputs/s", "small")
    for ranks in sorted({run["ranks"] for run in others}):
        picture.text(across(ranks), up.begin + 18, str(ranks), anchor="middle")
    picture.text(across.end, up.begin + 36, "GPUs", anchor="end")
    picture.path([(across(ranks), up(ranks * rate)) for ranks in (1, most)], "s7 dashed")
    for mode, (dot, line) in KINDS.items():
        own = sorted((run["ranks"], run["inputs_per_second"]) for run in others if run["offload"] == mode)
        places = [(across(ranks), up(found)) for ranks, found in own]
        picture.path(places, f"{line} thick")
        for (x, y), (ranks, found) in zip(places, own, strict=True):
            picture.dot(x, y, dot, f"{mode}, {ranks} GPUs: {found:,.0f} inputs/s")
    ends = {mode: max(run["inputs_per_second"] for run in others if run["offload"] == mode) for mode in KINDS}
    picture.text(across.end + 10, up(ends["static"]) + 4, "static", "said")
    picture.text(across.end + 10, up(ends["farm"]) + 16, "farm, async", "small said")
    picture.text(across.end + 10, up(most * rate) - 6, f"{most} × one", "small")
    return str(picture)
