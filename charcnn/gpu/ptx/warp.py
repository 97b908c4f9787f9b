"""What the lanes of a warp give each other, and registers that warpgroups do. PTX ISA: "shfl.sync", "setmaxnreg"."""

from __future__ import annotations

from functools import cache

from charcnn.aliases import Intrinsic
from charcnn.gpu.device import SIMULATED
from charcnn.gpu.ptx.intrinsics import asm, instruction, typed

if not SIMULATED:
    from numba.cuda import types

    from charcnn.gpu.backend.compiler import cgutils

WARP_SUM = "".join(
    f"mov.b32 x, $0;\nshfl.sync.bfly.b32 x, x, {lane_mask}, 31, -1;\nmov.b32 y, x;\nadd.rn.f32 $0, $0, y;\n"
    for lane_mask in (16, 8, 4, 2, 1)
)


@instruction(
    "{.reg .b32 x;\n.reg .f32 y;\nmov.b32 x, $1;\nshfl.sync.bfly.b32 x, x, 1, 31, -1;\nmov.b32 y, x;\n"
    "add.rn.f32 $0, $1, y;\nmov.b32 x, $0;\nshfl.sync.bfly.b32 x, x, 2, 31, -1;\nmov.b32 y, x;\nadd.rn.f32 $0, $0, y;}",
    "f",
    "f",
)
def quad_sum(value):
    """The sum of a float32 over the four lanes of this lane's quad, in each of them.

    PTX: shfl.sync.bfly.b32 by 1 and by 2; section "shfl.sync". Since compute capability 3.0.
    """


@instruction(f"{{.reg .b32 x;\n.reg .f32 y;\nmov.f32 $0, $1;\n{WARP_SUM}}}", "f", "f")
def warp_sum(value):
    """The sum of a float32 over all lanes, in each of them.

    PTX: shfl.sync.bfly.b32 by 16, 8, 4, 2 and 1; section "shfl.sync". Since compute capability 3.0.
    """


@cache
def shfl_exchange(words: int, lane_mask: int) -> Intrinsic:
    """exchange(first, second, odd): lanes that differ by `lane_mask` give each other one of two runs of `words` words.

    The result is 2 `words` words: where `odd` is 0, the lane's own first run, then the other lane's; where it is not,
    the other lane's second run, then its own. `odd` is the lane's number & `lane_mask`, a power of two below 32.

    PTX: selp.b32 and shfl.sync.bfly.b32; sections "selp" and "shfl.sync". Since compute capability 3.0.
    """
    lines = ["{", ".reg .pred odd;", ".reg .b32 x;", f"setp.ne.u32 odd, ${4 * words}, 0;"]
    for i in range(words):
        first, second = 2 * words + i, 3 * words + i
        lines += [
            f"selp.b32 x, ${first}, ${second}, odd;",
            f"shfl.sync.bfly.b32 x, x, {lane_mask}, 31, -1;",
            f"selp.b32 ${i}, x, ${first}, odd;",
            f"selp.b32 ${words + i}, ${second}, x, odd;",
        ]
    text, letters = "\n".join([*lines, "}"]), "r" * (2 * words)

    @typed(text)
    def exchange(typingctx, first, second, odd):

        def codegen(context, builder, signature, arguments):
            runs = [word for run in arguments[:2] for word in cgutils.unpack_tuple(builder, run)]
            made = asm(builder, text, letters, letters + "r", [*runs, arguments[2]], early=True)
            return context.make_tuple(builder, signature.return_type, made)

        run = types.UniTuple(types.uint32, words)
        return types.UniTuple(types.uint32, 2 * words)(run, run, types.uint32), codegen

    return exchange


@cache
def setmaxnreg(count: int, more: bool) -> Intrinsic:
    """take(): from here on this warpgroup's threads have so many registers: fewer, or `more`, once others gave them.

    A kernel that calls it has as many at its start as its threads' number allows. Each path of it is compiled for the
    registers that it then has, so that paths with different numbers must not meet again.

    PTX: setmaxnreg.inc or .dec.sync.aligned.u32; section "setmaxnreg". Since compute capability 9.0 (sm_90a).
    """

    @instruction(f"setmaxnreg.{'inc' if more else 'dec'}.sync.aligned.u32 {count};")
    def take():
        """See `setmaxnreg`."""

    return take
