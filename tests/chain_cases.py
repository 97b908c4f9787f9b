"""Arguments of chains of four convolutions."""

from __future__ import annotations

import numpy as np
from case_kinds import Case, Cases, Sizes, values, weights


def _chain(rng, normal, n, length, c_in, **sizes):
    inputs = {"x": values(rng, n, c_in, length, normal=normal)}
    for i in range(1, 5):
        c_out, k = sizes[f"c{i}"], sizes[f"k{i}"]
        weight, bias = weights(rng, c_out, c_in, k, normal=normal)
        scale = np.float32((c_in * k) ** (-0.5 if normal else -1))  # so that no layer's values outgrow its biases
        inputs[f"weight{i}"], inputs[f"bias{i}"] = weight * scale, bias
        if not normal:  # a channel that ReLU lets through
            inputs[f"weight{i}"][0], inputs[f"bias{i}"][0] = abs(inputs[f"weight{i}"][0]), abs(bias[0])
        c_in = c_out
    return Case(inputs)


def _chain_fits(s: Sizes) -> bool:
    return s["length"] >= 1 + sum(s[f"k{i}"] - 1 for i in range(1, 5))


def _chain_sizes(n: int, length: int, channels: tuple[int, ...], kernel_sizes: tuple[int, ...]) -> Sizes:
    sizes = {"n": n, "length": length, "c_in": channels[0]}
    for i, (c, k) in enumerate(zip(channels[1:], kernel_sizes, strict=True), 1):
        sizes |= {f"c{i}": c, f"k{i}": k}
    return sizes


CHAIN1D = Cases(
    _chain,
    edges=(
        _chain_sizes(2, 10, (2, 3, 2, 2, 3), (3, 2, 3, 2)),
        _chain_sizes(1, 1, (1, 1, 1, 1, 1), (1, 1, 1, 1)),
        _chain_sizes(0, 9, (2, 2, 2, 2, 2), (3, 3, 3, 3)),
        _chain_sizes(1, 12, (1, 9, 2, 1, 10), (4, 1, 2, 5)),
    ),
    large=(
        _chain_sizes(33, 31, (20, 30, 17, 40, 23), (3, 2, 5, 3)),
        _chain_sizes(3, 110, (256, 256, 256, 256, 256), (3, 3, 3, 3)),  # the network's: conv_block_3 to 6
    ),
    draw={
        "n": (0, 1, 9),
        "length": (1, 9, 60),
        "c_in": (1, 3, 20),
        **{f"c{i}": (1, 3, 20) for i in range(1, 5)},
        **{f"k{i}": (1, 2, 4) for i in range(1, 5)},
    },
    fits=_chain_fits,
    compiled_in=("length", "c_in", *(f"{name}{i}" for i in range(1, 5) for name in "ck")),
    examples=6,
)
