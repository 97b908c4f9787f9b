"""Arguments to try a transformer's operators on."""

from __future__ import annotations

from dataclasses import replace

import case_makers as make
from case_kinds import Cases
from image_cases import LINEAR, TWO_LINEARS

ATTENTION = Cases(
    make.attention,
    edges=(
        {"n": 3, "heads": 2, "s": 7, "d": 5, "given": 1},
        {"n": 1, "heads": 1, "s": 1, "d": 1},
        {"n": 0, "heads": 2, "s": 3, "d": 4},
        {"n": 2, "heads": 3, "s": 9, "d": 4, "causal": 1},
        {"n": 3, "heads": 1, "s": 6, "d": 8, "given": 1, "causal": 1},
        {"n": 1, "heads": 1, "s": 64, "d": 32},
    ),
    large=(
        {"n": 2, "heads": 12, "s": 129, "d": 64},
        {"n": 2, "heads": 12, "s": 64, "d": 128, "causal": 1},
        {"n": 4, "heads": 3, "s": 7, "d": 64, "given": 1},
        {"n": 5, "heads": 3, "s": 129, "d": 32, "given": 1},
        {"n": 3, "heads": 3, "s": 150, "d": 128, "given": 1, "causal": 1},
        {"n": 1, "heads": 1, "s": 1030, "d": 64, "causal": 1},
    ),
    draw={"n": (0, 2, 5), "heads": (1, 2, 12), "s": (1, 9, 140), "d": (1, 5, 128), "given": (0, 1, 1)}
    | {"causal": (0, 1, 1)},
    compiled_in=("d",),
)

ROWNORM = Cases(
    make.rownorm,
    edges=(
        {"n": 2, "s": 3, "h": 12},
        {"n": 1, "s": 1, "h": 1},
        {"n": 0, "s": 2, "h": 3},
        {"n": 3, "s": 1, "h": 131},  # beyond what a warp takes at once
        {"n": 1, "s": 5, "h": 160},
    ),
    large=({"n": 3, "s": 128, "h": 768}, {"n": 2, "s": 9, "h": 1026}, {"n": 7, "s": 5, "h": 384}),
    draw={"n": (0, 2, 9), "s": (1, 3, 20), "h": (1, 40, 1100)},
)

EMBEDDING = Cases(
    make.embedding,
    edges=(
        {"n": 2, "s": 5, "h": 6, "vocabulary": 9, "types": 2, "given": 1},
        {"n": 1, "s": 1, "h": 1, "vocabulary": 1, "types": 1},
        {"n": 0, "s": 3, "h": 4, "vocabulary": 5, "types": 2},
        {"n": 2, "s": 4, "h": 33, "vocabulary": 7, "types": 2},
    ),
    large=(
        {"n": 3, "s": 128, "h": 768, "vocabulary": 3000, "types": 2},
        {"n": 5, "s": 33, "h": 384, "vocabulary": 300, "types": 2, "given": 1},
    ),
    draw={"n": (0, 2, 9), "s": (1, 5, 40), "h": (1, 9, 130), "vocabulary": (1, 9, 300), "types": (1, 2, 3)}
    | {"given": (0, 1, 1)},
)

HEADS = Cases(
    make.heads,
    edges=(
        {"n": 2, "s": 3, "heads": 4, "d": 5},
        {"n": 1, "s": 1, "heads": 1, "d": 1},
        {"n": 0, "s": 2, "heads": 3, "d": 2},
    ),
    large=({"n": 3, "s": 128, "heads": 12, "d": 64},),
    draw={"n": (0, 2, 5), "s": (1, 3, 20), "heads": (1, 3, 12), "d": (1, 4, 40)},
    examples=20,
)

FEW = {"n": (0, 2, 33), "c_in": (1, 9, 300), "c_out": (1, 3, 140)}

TRANSFORMER = {
    "linear_gelu_nlc": replace(
        LINEAR, make=make.channels_last(LINEAR.make), edges=LINEAR.edges[:3], draw=FEW, examples=3
    ),
    "linear_gelu_linear_nlc": replace(
        TWO_LINEARS,
        make=make.channels_last(TWO_LINEARS.make),
        edges=TWO_LINEARS.edges[:3],
        draw={**FEW, "c_mid": (1, 5, 300)},
        examples=3,
    ),
    "heads_apart": HEADS,
    "add": replace(HEADS, make=make.add),
    "embedding": EMBEDDING,
    "embedding_rownorm": replace(EMBEDDING, make=make.embedding_rownorm),
    "rownorm": ROWNORM,
    "add_rownorm": replace(ROWNORM, make=make.add_rownorm),
    "attention": ATTENTION,
    "packed_attention": Cases(
        make.packed_attention,
        edges=(
            {"n": 3, "heads": 2, "s": 7, "d": 5},
            {"n": 1, "heads": 1, "s": 1, "d": 1},
            {"n": 3, "heads": 1, "s": 6, "d": 8, "causal": 1},
            {"n": 2, "heads": 1, "s": 32, "d": 32},
        ),
        large=(
            {"n": 5, "heads": 12, "s": 129, "d": 64},
            {"n": 4, "heads": 3, "s": 150, "d": 128, "causal": 1},
            {"n": 9, "heads": 12, "s": 40, "d": 32},
        ),
        draw={"n": (1, 2, 5), "heads": (1, 2, 12), "s": (1, 6, 140), "d": (1, 4, 128), "causal": (0, 1, 1)},
        compiled_in=("d",),
        examples=20,
    ),
}
