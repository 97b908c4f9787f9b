"""The epilogue of the wgmma kernel: from a thread's accumulators to rows of y, by a builder for each result format.

A thread has the accumulators of two rows, eight apart: of each, `octets` runs of eight neighbouring channels, which the
order of the packed weights brings together (README.md). With pooling, two warpgroups stage theirs in shared memory, and
the third stores the maxima with its own. Builders give device functions: as functions of their own these compile in a
third of the time that nested ones take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from charcnn.ops.common.epilogues import Epilogue
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.wgmma.config import WgmmaTile
from charcnn.ops.conv1d.wgmma.epilogue.common import Case, make_read_four
from charcnn.ops.conv1d.wgmma.epilogue.e4m3 import make_e4m3
from charcnn.ops.conv1d.wgmma.epilogue.floats import make_32_bits, make_two_terms
from charcnn.ops.conv1d.wgmma.epilogue.halves import make_16_bits
from charcnn.ops.conv1d.wgmma.epilogue.row_moments import make_row_moments


@dataclass(frozen=True)
class Ending:
    """Device functions of a thread: stage what another warpgroup pools, store two rows, write their moments."""

    stage_for_pool: Any
    """(acc, pool_pass, base, thread, warpgroup, scale)"""
    store: Any
    """(acc, pool_pass, base, thread, column, row, row_8, scale, y, c_out)"""
    row_moments: Any
    """(acc, second, column, row, n_tile, lane, scale, moments, n_tiles, c_out)"""
    passes: int
    """How many times the two stage and the third stores: as often as the exchange is filled."""


def make_epilogue(
    operands: NumberFormat,
    config: WgmmaTile,
    epilogue: Epilogue,
    vector_store: bool,
    full_n_tiles: bool,
) -> Ending:
    """Arguments as `make_kernel` has them."""
    rectified, function, results = epilogue.rectified, epilogue.function, epilogue.results
    case = Case(config, operands.scaled, rectified, function, vector_store, full_n_tiles, epilogue.moments)
    read_four = make_read_four(case.scaled, case.pointwise, narrow=results.size <= 2)
    if results.ptx_type == "e4m3":
        stage, store, passes = make_e4m3(case, read_four)
    elif results.terms == 2:
        stage, store, passes = make_two_terms(case, read_four)
    elif results.ptx_type in ("tf32", "f32"):
        stage, store, passes = make_32_bits(case, read_four, results.ptx_type)
    else:
        stage, store, passes = make_16_bits(case, read_four, results.ptx_type)
    return Ending(stage, store, make_row_moments(case), passes)
