"""What `direct_mma` takes, and its plans at networks' layers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any
from unittest import mock

import numpy as np
from case_kinds import Sizes
from image_cases import moves_by_one

from charcnn import ops
from charcnn.layers.windows import Window
from charcnn.ops.conv2d import direct_mma, direct_mma_plan


def in_registers(precision: str, s: Sizes) -> bool:
    """Whether weights fit in registers, and the window moves by 1."""
    sides = {**dict.fromkeys(("top", "bottom", "left", "right"), 0), **s}
    padding = tuple(sides[name] for name in ("top", "bottom", "left", "right"))
    moved = Window((s["kh"], s["kw"]), padding=padding)
    first, *_ = direct_mma_plan.candidates((s["c_in"], s["h"], s["w"]), s["c_out"], moved, precision)
    return moves_by_one(s) and first.fragments <= direct_mma_plan.FRAGMENTS


DIRECT_MMA = {
    "direct_mma": partial(in_registers, "fp16x3"),
    **{f"direct_mma_{name}": partial(in_registers, name) for name in direct_mma_plan.PRECISIONS},
}
"""By technique, and by label, which sizes it takes."""


def bands(layers: Iterable[tuple[Any, Any, dict[str, Any]]], precision: str) -> None:
    """Launch layers that it takes: results leave as bulk copies, and in float32's precision go straight to y, too.

    The latter with bands of every number of rows.
    """
    for x, filters, moves in layers:
        if "stride" not in moves:
            given = x, filters[0], Window(filters[2:], padding=(moves.get("padding", 0),) * 4), precision
            straight = direct_mma_plan.candidates(*given) if precision == "fp16x3" else ()
            for one in (*straight, *islice(direct_mma_plan.staged_candidates(*given), 1)):
                with mock.patch.object(direct_mma, "plan", return_value=one):
                    arrays = (np.zeros(of, np.float32) for of in ((1, *x), filters, filters[:1]))
                    ops.conv2d_direct_mma(*arrays, precision=precision, **moves)
