"""Instructions that Numba has no name for, as functions for kernels. All inline PTX stands here, a file a chapter.

Each is called as the instruction of NVIDIA's "PTX ISA" that a call compiles to; its docstring says its operands, its
section there, and since which compute capability it is. docs/ptx.md has examples. In the simulator plain Python stands
in, or NotImplementedError is raised where it has no such hardware. Those that take constants are made by a call outside
the kernel: `wait = ptx.wgmma_wait_group(0)`.
"""

# ruff: noqa: F401 - to be called from here
from charcnn.gpu.ptx.arithmetic import (
    add_f16x2,
    bitcast_b32,
    bitcast_f32,
    ex2_approx_f32,
    fma_f16x2,
    max_nan_f16x2,
    max_nan_f32,
    mul_f16x2,
    mul_hi_u32,
    prmt,
    rcp_approx_f32,
    rsqrt_approx_f32,
    sqrt_approx_f32,
)
from charcnn.gpu.ptx.convert import (
    cvt_bf16x2_f16x2,
    cvt_e4m3x4,
    cvt_e4m3x4_f16x2,
    cvt_f16x2,
    cvt_f16x2_e4m3x4,
    cvt_f32_e4m3,
    cvt_f32x2,
    cvt_relu_e4m3x4,
    cvt_tf32,
    pack_floats,
)
from charcnn.gpu.ptx.cp_async import cp_async, cp_async_16, cp_async_commit_group, cp_async_wait_group
from charcnn.gpu.ptx.grid import (
    cluster_arrive_relaxed,
    cluster_sync,
    cluster_sync_relaxed,
    cluster_wait,
    globaltimer_lo,
    griddepcontrol_launch,
    griddepcontrol_wait,
    mapa,
    tid_x,
)
from charcnn.gpu.ptx.intrinsics import instruction
from charcnn.gpu.ptx.ld_st import (
    ALIGNMENT,
    VECTOR,
    cvta_to_shared,
    ld_cg,
    ld_cg_v4_f32,
    ld_global_b32,
    ld_global_f32,
    ld_global_v2_b32,
    ld_global_v4_b32,
    ld_global_v4_f32,
    ld_nc_no_allocate,
    ld_shared_b32,
    ld_shared_cluster_v4_f32,
    ld_shared_v2_b32,
    ld_shared_v4_b32,
    ld_shared_v4_b32_at,
    ld_shared_v4_f32,
    ld_shared_v4_f32_at,
    st_async_v4_b32,
    st_global_b8,
    st_global_b16,
    st_global_b32,
    st_global_f32,
    st_global_v2_b32,
    st_global_v2_f32,
    st_global_v4_b32,
    st_global_v4_f32,
    st_shared_v2_f32,
    st_shared_v4_b32,
    st_shared_v4_b32_at,
    st_shared_v4_f32,
)
from charcnn.gpu.ptx.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_cluster,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_wait,
    named_barrier_arrive,
    named_barrier_sync,
)
from charcnn.gpu.ptx.mma import ldmatrix_x4, mma_sync, mma_sync_terms, mma_tile
from charcnn.gpu.ptx.mma_windows import LANE_STEP, ld_shared_each, mma_windows
from charcnn.gpu.ptx.simulated import E4M3_MAX, LOW_SCALE
from charcnn.gpu.ptx.tma import (
    bulk_commit_group,
    bulk_load,
    bulk_load_multicast,
    bulk_prefetch_l2,
    bulk_store,
    bulk_wait_group_read,
    fence_proxy_async,
    fence_proxy_tensormap,
    tma_load_2d,
    tma_load_3d,
    tma_load_4d,
    tma_load_im2col_4d,
)
from charcnn.gpu.ptx.warp import quad_sum, setmaxnreg, shfl_exchange, warp_sum
from charcnn.gpu.ptx.wgmma import DESCRIPTOR_HIGH, DESCRIPTOR_LOW, descriptor, wgmma, wgmma_fence, wgmma_wait_group
