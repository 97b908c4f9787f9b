"""TMA: copies by a tensor map, and bulk copies, which complete on an mbarrier. PTX ISA: "cp.async.bulk".

`tensor_map.encode` makes a map. Addresses are uint32 in shared memory, `to` and `mbarrier`, and uint64 in global
memory.
"""

from __future__ import annotations

from functools import cache

from charcnn.aliases import Intrinsic
from charcnn.gpu.ptx.intrinsics import instruction

COMPLETES = "mbarrier::complete_tx::bytes"


@instruction("fence.proxy.tensormap::generic.acquire.gpu [$0], 128;", "", "l")
def fence_proxy_tensormap(tensor_map):
    """Let TMA see a tensor map that was written to global memory before the kernel began.

    PTX: fence.proxy.tensormap::generic.acquire.gpu [tensor_map], 128; section "membar, fence". Since compute
    capability 9.0.
    """


@instruction("fence.proxy.async.shared::cta;")
def fence_proxy_async():
    """Let wgmma and TMA see what this thread wrote to shared memory by plain stores or cp.async.

    PTX: fence.proxy.async.shared::cta; section "membar, fence". Since compute capability 9.0.
    """


@instruction(f"cp.async.bulk.tensor.2d.shared::cluster.global.{COMPLETES} [$0], [$1, {{$3, $4}}], [$2];", "", "rlrrr")
def tma_load_2d(to, tensor_map, mbarrier, column, row):
    """Start to copy a tensor map's box to shared memory, its first element at (row, column); zeros where there is none.

    PTX: cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [to], [map, {column, row}],
    [mbarrier]; section "cp.async.bulk.tensor". Since compute capability 9.0.
    """


@instruction(
    f"cp.async.bulk.tensor.3d.shared::cluster.global.{COMPLETES} [$0], [$1, {{$3, $4, $5}}], [$2];", "", "rlrrrr"
)
def tma_load_3d(to, tensor_map, mbarrier, column, phase, row):
    """`tma_load_2d` of a map with three dimensions, the innermost first.

    PTX: cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes; section "cp.async.bulk.tensor".
    Since compute capability 9.0.
    """


@instruction(
    f"cp.async.bulk.tensor.4d.shared::cluster.global.{COMPLETES} [$0], [$1, {{$3, $4, $5, $6}}], [$2];", "", "rlrrrrr"
)
def tma_load_4d(to, tensor_map, mbarrier, channel, column, row, image):
    """`tma_load_2d` of a map with four dimensions, the innermost first. All but that may be negative.

    PTX: cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes; section "cp.async.bulk.tensor".
    Since compute capability 9.0.
    """


@instruction(
    "{.reg .b16 right, down;\ncvt.u16.u32 right, $7;\ncvt.u16.u32 down, $8;\n"
    f"cp.async.bulk.tensor.4d.shared::cluster.global.im2col.{COMPLETES} "
    "[$0], [$1, {$3, $4, $5, $6}], [$2], {right, down};}",
    "",
    "rlrrrrrrr",
)
def tma_load_im2col_4d(to, tensor_map, mbarrier, channel, column, row, image, right, down):
    """Start to copy as many pixels as a map by im2col says, from (image, row, column) on, of one tap of a window.

    The tap is so many pixels right of and down from the window's first one. Rows and columns may be negative, as two's
    complement. Pixels that are not there are zero.

    PTX: cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [to], [map, {channel,
    column, row, image}], [mbarrier], {right, down}; section "cp.async.bulk.tensor". Since compute capability 9.0.
    """


@instruction(f"cp.async.bulk.shared::cluster.global.{COMPLETES} [$0], [$1], $2, [$3];", "", "rlrr")
def bulk_load(to, source, size, mbarrier):
    """Start to copy `size` bytes from global to shared memory; all three are multiples of 16.

    PTX: cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [source], size, [mbarrier]; section
    "cp.async.bulk". Since compute capability 9.0.
    """


@instruction("cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;", "", "grr")
def bulk_store(to, source, size):
    """Start to copy `size` bytes from shared to global memory; all three are multiples of 16.

    What other threads wrote there each of them fences first (`fence_proxy_async`). `bulk_commit_group` closes a group
    of copies, `bulk_wait_group_read` waits until groups are read: not before may their place be written again, or the
    block end.

    PTX: cp.async.bulk.global.shared::cta.bulk_group [to], [source], size; section "cp.async.bulk". Since compute
    capability 9.0.
    """


@instruction("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$2, $3}], [$1];", "", "lrrr")
def tma_store_2d(tensor_map, source, column, row):
    """Start to copy a box, swizzled as the tensor map has it, to its array; nothing where the array has ended.

    As of `bulk_store`, each thread fences what it wrote, and groups are closed and waited for.

    PTX: cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [map, {column, row}], [source]; section
    "cp.async.bulk.tensor". Since compute capability 9.0.
    """


@instruction("cp.async.bulk.commit_group;")
def bulk_commit_group():
    """Close a group: all of this thread's bulk stores since the last one.

    PTX: cp.async.bulk.commit_group; section "cp.async.bulk.commit_group". Since compute capability 9.0.
    """


@cache
def bulk_wait_group_read(groups: int) -> Intrinsic:
    """wait(): until all but at most so many of this thread's latest groups of bulk stores are read.

    PTX: cp.async.bulk.wait_group.read groups; section "cp.async.bulk.wait_group". Since compute capability 9.0.
    """

    @instruction(f"cp.async.bulk.wait_group.read {groups};")
    def wait():
        """See `bulk_wait_group_read`."""

    return wait


@instruction("cp.async.bulk.prefetch.L2.global [$0], $1;", "", "lr")
def bulk_prefetch_l2(source, size):
    """Start to bring `size` bytes of global memory to the second-level cache; both are multiples of 16.

    PTX: cp.async.bulk.prefetch.L2.global [source], size; section "cp.async.bulk.prefetch". Since compute capability
    9.0.
    """


@cache
def tma_load_2d_multicast(blocks: int) -> Intrinsic:
    """copy(to, tensor_map, mbarrier, column, row): as `tma_load_2d`, to all of the cluster's `blocks` (at most 16).

    In each of them the box comes to the same place as in the block that asks, and counts at its mbarrier there.

    PTX: cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [to], [map,
    {column, row}], [mbarrier], blocks; section "cp.async.bulk.tensor". Since compute capability 9.0.
    """
    text = (
        f"{{.reg .b16 which;\nmov.b16 which, {(1 << blocks) - 1};\n"
        f"cp.async.bulk.tensor.2d.shared::cluster.global.{COMPLETES}.multicast::cluster "
        "[$0], [$1, {$3, $4}], [$2], which;}"
    )

    @instruction(text, "", "rlrrr")
    def copy(to, tensor_map, mbarrier, column, row):
        """See `tma_load_2d_multicast`."""

    return copy


@cache
def bulk_load_multicast(blocks: int) -> Intrinsic:
    """copy(to, source, size, mbarrier): as `bulk_load`, to all of the cluster's `blocks` (at most 16).

    In each of them the bytes come to the same place as in the block that asks, and count at its mbarrier there.

    PTX: cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [to], [source], size,
    [mbarrier], blocks; section "cp.async.bulk". Since compute capability 9.0.
    """
    text = (
        f"{{.reg .b16 which;\nmov.b16 which, {(1 << blocks) - 1};\n"
        f"cp.async.bulk.shared::cluster.global.{COMPLETES}.multicast::cluster [$0], [$1], $2, [$3], which;}}"
    )

    @instruction(text, "", "rlrr")
    def copy(to, source, size, mbarrier):
        """See `bulk_load_multicast`."""

    return copy
