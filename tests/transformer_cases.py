"""Arguments to try a transformer's operators on."""

from __future__ import annotations

import case_makers as make
from case_kinds import Cases

ATTENTION = Cases(
    make.attention,
    edges=(
        {"n": 3, "heads": 2, "s": 7, "d": 5, "given": 1},
        {"n": 1, "heads": 1, "s": 1, "d": 1},
        {"n": 0, "heads": 2, "s": 3, "d": 4},
        {"n": 2, "heads": 3, "s": 9, "d": 4, "causal": 1},
        {"n": 3, "heads": 1, "s": 6, "d": 8, "given": 1, "causal": 1},
    ),
    large=(
        {"n": 2, "heads": 12, "s": 129, "d": 64},
        {"n": 5, "heads": 3, "s": 129, "d": 32, "given": 1},
        {"n": 3, "heads": 3, "s": 150, "d": 128, "given": 1, "causal": 1},
        {"n": 1, "heads": 1, "s": 1030, "d": 64, "causal": 1},
    ),
    draw={"n": (0, 2, 5), "heads": (1, 2, 12), "s": (1, 9, 140), "d": (1, 5, 128), "given": (0, 1, 1)}
    | {"causal": (0, 1, 1)},
    compiled_in=("d",),
)

TRANSFORMER = {"attention": ATTENTION}
