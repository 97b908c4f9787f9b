"""Arguments to try AlexNet's first two layers on, as one kernel."""

from __future__ import annotations

import numpy as np
from case_kinds import Case, Cases, Sizes, values, weights


def _chain(rng, normal, n, c_in, h, w, c1, k1, c2, k2, p, s1=1, s2=1, ps=0, pad1=0, pad2=0, g1=1, g2=1):
    """Sizes of channels are of a group."""
    inputs = {"x": values(rng, n, g1 * c_in, h, w, normal=normal)}
    for i, (groups, before, after, k) in enumerate(((g1, c_in, c1, k1), (g2, g1 * c1, c2, k2)), 1):
        depth = before if i == 1 else before // groups
        weight, bias = weights(rng, groups * after, depth, k, k, normal=normal)
        scale = np.float32((depth * k * k) ** (-0.5 if normal else -1))  # so that no layer's values outgrow its biases
        inputs |= {f"weight{i}": weight * scale, f"bias{i}": bias}
        if not normal:  # channels that ReLU lets through
            inputs[f"weight{i}"], inputs[f"bias{i}"] = abs(weight * scale), abs(bias)
    options = {
        "strides": ((s1, s1), (s2, s2)),
        "paddings": ((pad1,) * 4, (pad2,) * 4),
        "groups": (g1, g2),
        "pool_size": (p, p),
    }
    return Case(inputs, options | ({"pool_stride": (ps, ps)} if ps else {}))


def _chain_fits(s: Sizes) -> bool:
    size = min(s["h"], s["w"])
    for i in (1, 2):
        windows = (s[f"k{i}"], s.get(f"s{i}", 1), s.get(f"pad{i}", 0)), (s["p"], s.get("ps", 0) or s["p"], 0)
        for kernel, stride, padding in windows:
            if size + 2 * padding < kernel:
                return False
            size = (size + 2 * padding - kernel) // stride + 1
    return s.get("g1", 1) * s["c1"] % s.get("g2", 1) == 0


CHAIN2D = Cases(
    _chain,
    edges=(
        {"n": 2, "c_in": 2, "h": 9, "w": 8, "c1": 3, "k1": 3, "c2": 2, "k2": 2, "p": 2},
        {"n": 1, "c_in": 1, "h": 1, "w": 1, "c1": 1, "k1": 1, "c2": 1, "k2": 1, "p": 1},
        {"n": 0, "c_in": 1, "h": 6, "w": 7, "c1": 2, "k1": 2, "c2": 1, "k2": 1, "p": 2},
        {"n": 1, "c_in": 1, "h": 23, "w": 25, "c1": 2, "k1": 5, "c2": 3, "k2": 3, "p": 3}
        | {"s1": 2, "ps": 2, "pad2": 1, "g2": 2},  # as AlexNet's
    ),
    large=(
        {
            "n": 3,
            "c_in": 5,
            "h": 45,
            "w": 37,
            "c1": 9,
            "k1": 3,
            "c2": 7,
            "k2": 3,
            "p": 2,
            "pad1": 1,
            "g1": 2,
            "g2": 3,
        },
        {"n": 2, "c_in": 3, "h": 115, "w": 115, "c1": 32, "k1": 11, "c2": 33, "k2": 5, "p": 3}
        | {"s1": 4, "ps": 2, "pad2": 2, "g2": 2},  # AlexNet's, smaller
    ),
    draw={
        "n": (0, 1, 3),
        "c_in": (1, 2, 8),
        "h": (1, 14, 40),
        "w": (1, 14, 40),
        "c1": (1, 2, 12),
        "k1": (1, 3, 7),
        "c2": (1, 3, 12),
        "k2": (1, 3, 5),
        "p": (1, 3, 3),
        "s1": (1, 2, 4),
        "s2": (1, 2, 2),
        "ps": (0, 3, 3),
        "pad1": (0, 2, 3),
        "pad2": (0, 2, 3),
        "g1": (1, 2, 3),
        "g2": (1, 2, 2),
    },
    fits=_chain_fits,
    compiled_in=("c_in", "h", "w", "c1", "k1", "c2", "k2", "p", "s1", "s2", "ps", "pad1", "pad2", "g1", "g2"),
    examples=6,
)
