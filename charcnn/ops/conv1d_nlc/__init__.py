"""conv1d on channels-last features as a matrix product, in the order in which the history improved it.

Rows are output positions, columns output channels, and the depth is K * C_in: row t is the run x[n, t : t + K], which
lies in one piece, so rows overlap in memory and nothing is ever copied out ("implicit GEMM").
"""

from charcnn.ops.conv1d_nlc.coalesced import conv1d_nlc_coalesced
from charcnn.ops.conv1d_nlc.double_buffered import (
    conv1d_nlc_double_buffered,
    conv1d_relu_maxpool1d_nlc_double_buffered,
    conv1d_relu_nlc_double_buffered,
    conv1d_stat_nlc_double_buffered,
)
from charcnn.ops.conv1d_nlc.register_tiled import conv1d_nlc_register_tiled
from charcnn.ops.conv1d_nlc.tiled import conv1d_nlc_tiled
from charcnn.ops.conv1d_nlc.vectorized import conv1d_nlc_vectorized
from charcnn.ops.conv1d_nlc.wgmma import (
    Wgmma,
    conv1d_nlc_wgmma_bf16,
    conv1d_nlc_wgmma_fp16,
    conv1d_relu_maxpool1d_nlc_wgmma_bf16,
    conv1d_relu_maxpool1d_nlc_wgmma_fp16,
    conv1d_relu_nlc_wgmma_bf16,
    conv1d_relu_nlc_wgmma_fp16,
    conv1d_stat_nlc_wgmma_bf16,
    conv1d_stat_nlc_wgmma_fp16,
    linear_nlc_wgmma_bf16,
    linear_nlc_wgmma_fp16,
    linear_relu_nlc_wgmma_bf16,
    linear_relu_nlc_wgmma_fp16,
)
from charcnn.ops.conv1d_nlc.winograd import (
    Winograd,
    conv1d_nlc_winograd,
    conv1d_relu_maxpool1d_nlc_winograd,
    conv1d_relu_nlc_winograd,
    conv1d_stat_nlc_winograd,
)

__all__ = [
    "Wgmma",
    "Winograd",
    "conv1d_nlc_coalesced",
    "conv1d_nlc_double_buffered",
    "conv1d_nlc_register_tiled",
    "conv1d_nlc_tiled",
    "conv1d_nlc_vectorized",
    "conv1d_nlc_wgmma_bf16",
    "conv1d_nlc_wgmma_fp16",
    "conv1d_nlc_winograd",
    "conv1d_relu_maxpool1d_nlc_double_buffered",
    "conv1d_relu_maxpool1d_nlc_wgmma_bf16",
    "conv1d_relu_maxpool1d_nlc_wgmma_fp16",
    "conv1d_relu_maxpool1d_nlc_winograd",
    "conv1d_relu_nlc_double_buffered",
    "conv1d_relu_nlc_wgmma_bf16",
    "conv1d_relu_nlc_wgmma_fp16",
    "conv1d_relu_nlc_winograd",
    "conv1d_stat_nlc_double_buffered",
    "conv1d_stat_nlc_wgmma_bf16",
    "conv1d_stat_nlc_wgmma_fp16",
    "conv1d_stat_nlc_winograd",
    "linear_nlc_wgmma_bf16",
    "linear_nlc_wgmma_fp16",
    "linear_relu_nlc_wgmma_bf16",
    "linear_relu_nlc_wgmma_fp16",
]
