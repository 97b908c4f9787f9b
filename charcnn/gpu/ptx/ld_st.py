"""Loads and stores of 32 to 128 bits at once. PTX ISA: "Data Movement and Conversion Instructions", ld and st."""

from __future__ import annotations

from charcnn.gpu.device import SIMULATED
from charcnn.gpu.ptx.intrinsics import instruction, shared_pointer, typed

if not SIMULATED:
    from numba.cuda import types

VECTOR = 4
"""Floats that one 128-bit load, store or copy moves; arrays start at, and indices are, multiples of it."""

ALIGNMENT = None if SIMULATED else 4 * VECTOR
"""What `cuda.shared.array` takes as `alignment` for an array that such loads read; the simulator aligns none."""

TO_FOUR = "{$0, $1, $2, $3}, [$4];"
FROM_FOUR = "[$0], {$1, $2, $3, $4};"


@typed()
def cvta_to_shared(typingctx, array):
    """The address of a shared array's first element, uint32, in the shared window.

    PTX: cvta.to.shared; section "cvta". Any compute capability.
    """

    def codegen(context, builder, signature, arguments):
        return shared_pointer(context, builder, signature.args[0], arguments[0])

    return types.uint32(array), codegen


# Global memory: a place is an address, or an array and an index.


@instruction("ld.global.nc.f32 $0, [$1];", "f", "g")
def ld_global_f32(place):
    """A float32 of global memory, which no thread writes while the kernel runs.

    PTX: ld.global.nc.f32; section "ld.global.nc". Since compute capability 3.2.
    """


@instruction("ld.global.nc.b32 $0, [$1];", "r", "g")
def ld_global_b32(place):
    """A word, uint32, of global memory, which no thread writes while the kernel runs; at a multiple of 4 bytes.

    PTX: ld.global.nc.b32; section "ld.global.nc". Since compute capability 3.2.
    """


@instruction("ld.global.nc.v2.b32 {$0, $1}, [$2];", "rr", "g")
def ld_global_v2_b32(place):
    """(a, b), two words, uint32, of global memory, which no thread writes; at a multiple of 8 bytes.

    PTX: ld.global.nc.v2.b32; section "ld.global.nc". Since compute capability 3.2.
    """


@instruction(f"ld.global.nc.v4.f32 {TO_FOUR}", "ffff", "g")
def ld_global_v4_f32(place):
    """(a, b, c, d), four float32 of global memory, which no thread writes; at a multiple of 16 bytes.

    PTX: ld.global.nc.v4.f32; section "ld.global.nc". Since compute capability 3.2.
    """


@instruction(f"ld.global.nc.v4.b32 {TO_FOUR}", "rrrr", "g")
def ld_global_v4_b32(place):
    """(a, b, c, d), four words, uint32, of global memory, which no thread writes; at a multiple of 16 bytes.

    PTX: ld.global.nc.v4.b32; section "ld.global.nc". Since compute capability 3.2.
    """


def _guarded(load: str) -> str:
    zeros = "".join(f"mov.b32 ${i}, 0;\n" for i in range(4))
    return f"{{.reg .pred p;\nsetp.ne.u32 p, $5, 0;\n{zeros}@p {load} {{$0, $1, $2, $3}}, [$4];}}"


@instruction(_guarded("ld.global.nc.L1::no_allocate.v4.b32"), "rrrr", "lr", early=True)
def ld_nc_no_allocate(address, wanted):
    """(a, b, c, d), four words of global memory, which no thread writes, or zeros; not kept in the first cache.

    PTX: ld.global.nc.L1::no_allocate.v4.b32, if `wanted` is not 0; section "ld.global.nc". Since compute capability
    7.0.
    """


@instruction(_guarded("ld.global.cg.v4.b32"), "rrrr", "lr", early=True)
def ld_cg(address, wanted):
    """(a, b, c, d), four words of global memory that the kernel before this one may still have written, or zeros.

    PTX: ld.global.cg.v4.b32, past the first cache, if `wanted` is not 0; sections "ld" and "Cache Operators". Since
    compute capability 2.0.
    """


@instruction(
    "{.reg .pred p;\n.reg .b16 low, high;\nsetp.ne.u32 p, $2, 0;\nmov.b16 low, 0;\nmov.b16 high, 0;\n"
    "@p ld.global.b16 low, [$1];\nmov.b32 $0, {low, high};}",
    "r",
    "lr",
    early=True,
)
def ld_global_b16(address, wanted):
    """16 bits of global memory as a word, uint32, if `wanted` is not 0; else 0.

    PTX: ld.global.b16; section "ld". Any compute capability.
    """


@instruction(f"ld.weak.global.v4.b32 {TO_FOUR}", "rrrr", "l")
def ld_weak_v4_b32(address):
    """(a, b, c, d), four words of global memory that the kernel before this one, or this thread, may have written.

    PTX: ld.weak.global.v4.b32; section "ld". Since compute capability 7.0.
    """


@instruction(f"ld.global.cg.v4.f32 {TO_FOUR}", "ffff", "l")
def ld_cg_v4_f32(address):
    """(a, b, c, d), four float32, as `ld_cg`, always.

    PTX: ld.global.cg.v4.f32; sections "ld" and "Cache Operators". Since compute capability 2.0.
    """


@instruction("st.global.b8 [$0], $1;", "", "lr")
def st_global_b8(address, word):
    """A word's lowest 8 bits to global memory.

    PTX: st.global.b8; section "st". Any compute capability.
    """


@instruction("{.reg .b16 x, y;\nmov.b32 {x, y}, $1;\nst.global.b16 [$0], x;}", "", "lr")
def st_global_b16(address, word):
    """A word's lower 16 bits to global memory.

    PTX: st.global.b16; section "st". Any compute capability.
    """


@instruction("st.global.f32 [$0], $1;", "", "lf")
def st_global_f32(address, value):
    """A float32 to global memory.

    PTX: st.global.f32; section "st". Any compute capability.
    """


@instruction("st.global.b32 [$0], $1;", "", "lr")
def st_global_b32(address, word):
    """A word, uint32, to global memory.

    PTX: st.global.b32; section "st". Any compute capability.
    """


@instruction("st.global.v2.b32 [$0], {$1, $2};", "", "grr")
def st_global_v2_b32(place, a, b):
    """Two words, uint32, to global memory, at a multiple of 8 bytes.

    PTX: st.global.v2.b32; section "st". Any compute capability.
    """


@instruction("st.global.v2.f32 [$0], {$1, $2};", "", "gff")
def st_global_v2_f32(place, a, b):
    """Two float32 to global memory, at a multiple of 8 bytes.

    PTX: st.global.v2.f32; section "st". Any compute capability.
    """


@instruction(f"st.global.v4.f32 {FROM_FOUR}", "", "gffff")
def st_global_v4_f32(place, a, b, c, d):
    """Four float32 to global memory, at a multiple of 16 bytes.

    PTX: st.global.v4.f32; section "st". Any compute capability.
    """


@instruction(f"st.global.v4.b32 {FROM_FOUR}", "", "grrrr")
def st_global_v4_b32(place, a, b, c, d):
    """Four words, uint32, to global memory, at a multiple of 16 bytes.

    PTX: st.global.v4.b32; section "st". Any compute capability.
    """


# Shared memory: a place is an address, or an array, an index and an offset to it.


@instruction("ld.shared.f32 $0, [$1];", "f", "r")
def ld_shared_f32(address):
    """A float32 of shared memory, at a multiple of 4 bytes.

    PTX: ld.shared.f32; section "ld". Any compute capability.
    """


@instruction("ld.shared.b32 $0, [$1];", "r", "r")
def ld_shared_b32(address):
    """A word, uint32, of shared memory, at a multiple of 4 bytes.

    PTX: ld.shared.b32; section "ld". Any compute capability.
    """


@instruction("ld.shared.v2.b32 {$0, $1}, [$2];", "rr", "r")
def ld_shared_v2_b32(address):
    """(a, b), two words, uint32, of shared memory, at a multiple of 8 bytes.

    PTX: ld.shared.v2.b32; section "ld". Any compute capability.
    """


@instruction(f"ld.shared.v4.b32 {TO_FOUR}", "rrrr", "r")
def ld_shared_v4_b32(address):
    """(a, b, c, d), four words, uint32, of shared memory, at a multiple of 16 bytes.

    PTX: ld.shared.v4.b32; section "ld". Any compute capability.
    """


@instruction(f"ld.shared.v4.f32 {TO_FOUR}", "ffff", "s")
def ld_shared_v4_f32(place):
    """(a, b, c, d), four float32 of shared memory, at a multiple of 16 bytes.

    PTX: ld.shared.v4.f32; section "ld". Any compute capability.
    """


@instruction(f"ld.shared::cluster.v4.f32 {TO_FOUR}", "ffff", "r")
def ld_shared_cluster_v4_f32(address):
    """(a, b, c, d), four float32 of the shared memory of any block of the cluster, at an address that `mapa` gave.

    At a multiple of 16 bytes.

    PTX: ld.shared::cluster.v4.f32; section "ld". Since compute capability 9.0.
    """


@instruction(f"ld.shared.v4.b32 {TO_FOUR}", "rrrr", "a")
def ld_shared_v4_b32_at(place):
    """(a, b, c, d), four words, uint32, of a shared array, by an address in it and an offset in bytes.

    PTX: ld.shared.v4.b32; section "ld". Any compute capability.
    """


@instruction(f"ld.shared.v4.f32 {TO_FOUR}", "ffff", "a")
def ld_shared_v4_f32_at(place):
    """(a, b, c, d), four float32 of a shared array, by an address in it and an offset in bytes.

    PTX: ld.shared.v4.f32; section "ld". Any compute capability.
    """


@instruction("st.shared.b32 [$0], $1;", "", "rr")
def st_shared_b32(address, word):
    """A word, uint32, to shared memory, at a multiple of 4 bytes.

    PTX: st.shared.b32; section "st". Any compute capability.
    """


@instruction("st.shared.f32 [$0], $1;", "", "rf")
def st_shared_f32(address, value):
    """A float32 to shared memory, at a multiple of 4 bytes.

    PTX: st.shared.f32; section "st". Any compute capability.
    """


@instruction("st.shared.v2.f32 [$0], {$1, $2};", "", "rff")
def st_shared_v2_f32(address, a, b):
    """Two float32 to shared memory, at a multiple of 8 bytes.

    PTX: st.shared.v2.f32; section "st". Any compute capability.
    """


@instruction(f"st.shared.v4.b32 {FROM_FOUR}", "", "rrrrr")
def st_shared_v4_b32(address, a, b, c, d):
    """Four words, uint32, to shared memory, at a multiple of 16 bytes.

    PTX: st.shared.v4.b32; section "st". Any compute capability.
    """


@instruction(f"st.shared.v4.f32 {FROM_FOUR}", "", "sffff")
def st_shared_v4_f32(place, a, b, c, d):
    """Four float32 to shared memory, at a multiple of 16 bytes.

    PTX: st.shared.v4.f32; section "st". Any compute capability.
    """


@instruction(
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [$0], {$1, $2, $3, $4}, [$5];", "", "rrrrrr"
)
def st_async_v4_b32(address, a, b, c, d, mbarrier):
    """Four words to the shared memory of any block of the cluster; its mbarrier counts 16 bytes once they are there.

    Both addresses are of the same block, as `mapa` gives them; the first is a multiple of 16 bytes. No fence is needed.
    The launch has clusters of two blocks or more.

    PTX: st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32; section "st.async". Since compute capability
    9.0.
    """


@instruction(f"st.shared.v4.b32 {FROM_FOUR}", "", "arrrr")
def st_shared_v4_b32_at(place, a, b, c, d):
    """Four words, uint32, to a shared array, by an address in it.

    PTX: st.shared.v4.b32; section "st". Any compute capability.
    """
