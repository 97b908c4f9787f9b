"""Pictures of ladders: kernels that each add an idea to the last, and what each reached."""

from __future__ import annotations

from charcnn.charts.svg import Axis, Picture
from report.limits import ceiling
from report.schema import results

LEFT, RIGHT, TOP, ROW = 132, 18, 34, 30
LAYERS = {"conv2": "c0", "conv3": "c1"}
LIBRARY = "cuBLAS"
STORY = ("coalesced", "tiled", "register_tiled", "vectorized", "double_buffered")
"""Of l12, as its page tells them."""
H200 = "nvidia-h200"


def ladder_to_mma() -> str:
    """Its steps, the tuned kernel, and cuBLAS as a line."""
    return _ladder("mma")


def ladder_to_wgmma() -> str:
    """The steps to the wgmma kernel."""
    return _ladder("wgmma")


def ladder_of_l12() -> str:
    """Techniques of channels-last convolutions in float32, below what the GPU's units can do."""
    rates = {
        (technique, layer): row["gflop_per_second"] / 1e3
        for (operator, layer, technique, host), row in results().operators.items()
        if (operator, host) == ("conv1d_nlc", H200) and technique in STORY and layer in LAYERS
    }
    peak = ceiling(H200, "fp32")
    limits = {"s7": ("units' limit", peak / 1e12)} if peak else {}
    return _drawn(
        "TFLOP/s of l12's techniques at conv2 and conv3 on one NVIDIA H200, in float32", list(STORY), rates, limits
    )


def _ladder(technique: str) -> str:
    """At the largest batch that was measured."""
    (raw,) = results().ladders[f"{technique}_steps"].values()
    rows = raw[f"{technique}_steps"]
    rows = [row for row in rows if row["batch"] == max(other["batch"] for other in rows)]
    rates = {(row["step"], row["layer"]): row["tflop_per_second"] for row in rows}
    names = [name for name in dict.fromkeys(row["step"] for row in rows) if name != LIBRARY]
    limits = {f"s{kind[1]}": (f"{LIBRARY}, {layer}", rates[LIBRARY, layer]) for layer, kind in LAYERS.items()}
    gpu = raw["machine"]["gpus"][0]
    return _drawn(f"TFLOP/s of the steps to {technique} at conv2 and conv3 on one {gpu}, in fp16", names, rates, limits)


def _drawn(
    title: str, names: list[str], rates: dict[tuple[str, str], float], limits: dict[str, tuple[str, float]]
) -> str:
    """A row a step with a bar a layer; limits are dashed lines."""
    bottom = TOP + ROW * len(names)
    picture = Picture(title, bottom + 26)
    most = max([*rates.values(), *(limit for _, limit in limits.values())])
    across = Axis(0, 1.06 * most, LEFT, picture.width - RIGHT, log=False)
    entries = [
        *((kind, layer) for layer, kind in LAYERS.items()),
        *((kind, said) for kind, (said, _) in limits.items()),
    ]
    picture.legend([(f"{kind} dashed" if kind[0] == "s" else kind, said) for kind, said in entries], LEFT, 14, 112)
    tick = 100 if most > 100 else 10
    for value in range(0, int(across.high) + 1, tick):
        picture.line(across(value), TOP - 6, across(value), bottom)
        picture.text(across(value), bottom + 18, str(value), "small", "middle")
    picture.text(LEFT - 8, bottom + 18, "TFLOP/s", "small", "end")
    for number, name in enumerate(names):
        y = TOP + ROW * number
        picture.text(LEFT - 8, y + 16, name, "small said", "end")
        shown = [(layer, kind) for layer, kind in LAYERS.items() if (name, layer) in rates]
        for place, (layer, kind) in enumerate(shown):
            rate = rates[name, layer]
            picture.rect(LEFT, y + 11 * place, across(rate) - LEFT, 10, kind, f"{name}, {layer}: {rate:.1f} TFLOP/s")
    for kind, (_, limit) in limits.items():
        picture.line(across(limit), TOP - 6, across(limit), bottom, f"{kind} dashed")
    return str(picture)
