"""What `charcnn.ops.conv1d_nlc` has from CUDA's files, imported."""

# ruff: noqa: F401 - the package offers them

from charcnn.ops.conv1d_nlc.coalesced import conv1d_nlc_coalesced
from charcnn.ops.conv1d_nlc.double_buffered import (
    conv1d_nlc_double_buffered,
    conv1d_relu_maxpool1d_nlc_double_buffered,
    conv1d_relu_nlc_double_buffered,
    conv1d_stat_nlc_double_buffered,
)
from charcnn.ops.conv1d_nlc.mma import (
    Mma,
    conv1d_nlc_mma_bf16,
    conv1d_nlc_mma_fp16,
    conv1d_nlc_mma_fp16x3,
    conv1d_nlc_mma_tf32,
    conv1d_relu_maxpool1d_nlc_mma_bf16,
    conv1d_relu_maxpool1d_nlc_mma_fp16,
    conv1d_relu_maxpool1d_nlc_mma_fp16x3,
    conv1d_relu_maxpool1d_nlc_mma_tf32,
    conv1d_relu_nlc_mma_bf16,
    conv1d_relu_nlc_mma_fp16,
    conv1d_relu_nlc_mma_fp16x3,
    conv1d_relu_nlc_mma_tf32,
    conv1d_stat_nlc_mma_bf16,
    conv1d_stat_nlc_mma_fp16,
    conv1d_stat_nlc_mma_fp16x3,
    conv1d_stat_nlc_mma_tf32,
    linear_nlc_mma_bf16,
    linear_nlc_mma_fp16,
    linear_nlc_mma_fp16x3,
    linear_nlc_mma_tf32,
    linear_relu_nlc_mma_bf16,
    linear_relu_nlc_mma_fp16,
    linear_relu_nlc_mma_fp16x3,
    linear_relu_nlc_mma_tf32,
)
from charcnn.ops.conv1d_nlc.register_tiled import conv1d_nlc_register_tiled
from charcnn.ops.conv1d_nlc.tiled import conv1d_nlc_tiled
from charcnn.ops.conv1d_nlc.vectorized import conv1d_nlc_vectorized
from charcnn.ops.conv1d_nlc.wgmma import Wgmma
from charcnn.ops.conv1d_nlc.wgmma_variants import (
    conv1d_nlc_wgmma_bf16,
    conv1d_nlc_wgmma_fp8,
    conv1d_nlc_wgmma_fp16,
    conv1d_nlc_wgmma_fp16x3,
    conv1d_nlc_wgmma_tf32,
    conv1d_relu_maxpool1d_nlc_wgmma_bf16,
    conv1d_relu_maxpool1d_nlc_wgmma_fp8,
    conv1d_relu_maxpool1d_nlc_wgmma_fp16,
    conv1d_relu_maxpool1d_nlc_wgmma_fp16x3,
    conv1d_relu_maxpool1d_nlc_wgmma_tf32,
    conv1d_relu_nlc_wgmma_bf16,
    conv1d_relu_nlc_wgmma_fp8,
    conv1d_relu_nlc_wgmma_fp16,
    conv1d_relu_nlc_wgmma_fp16x3,
    conv1d_relu_nlc_wgmma_tf32,
    conv1d_stat_nlc_wgmma_bf16,
    conv1d_stat_nlc_wgmma_fp8,
    conv1d_stat_nlc_wgmma_fp16,
    conv1d_stat_nlc_wgmma_fp16x3,
    conv1d_stat_nlc_wgmma_tf32,
    linear_nlc_wgmma_bf16,
    linear_nlc_wgmma_fp8,
    linear_nlc_wgmma_fp16,
    linear_nlc_wgmma_fp16x3,
    linear_nlc_wgmma_tf32,
    linear_relu_nlc_wgmma_bf16,
    linear_relu_nlc_wgmma_fp8,
    linear_relu_nlc_wgmma_fp16,
    linear_relu_nlc_wgmma_fp16x3,
    linear_relu_nlc_wgmma_tf32,
)
from charcnn.ops.conv1d_nlc.winograd import (
    Winograd,
    conv1d_nlc_winograd,
    conv1d_relu_maxpool1d_nlc_winograd,
    conv1d_relu_nlc_winograd,
    conv1d_stat_nlc_winograd,
)
