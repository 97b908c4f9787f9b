"""conv1d on channels-last features as a matrix product, in the order in which the history improved it.

Rows are output positions, columns output channels, and the depth is K * C_in: row t is the run x[n, t : t + K], which
lies in one piece, so rows overlap in memory and nothing is ever copied out ("implicit GEMM").
"""

# ruff: noqa: F403, F405 - an editor and mypy see the names that load later

from typing import TYPE_CHECKING

from charcnn import lazy
from charcnn.ops.conv1d_nlc.winograd_lowered import (
    WinogradPacked,
    conv1d_nlc_winograd_lowered,
    conv1d_relu_maxpool1d_nlc_winograd_lowered,
    conv1d_relu_nlc_winograd_lowered,
)

if TYPE_CHECKING:
    from charcnn.ops.conv1d_nlc.on_gpu import *

__all__ = [
    "Mma",
    "Wgmma",
    "Winograd",
    "WinogradPacked",
    "conv1d_nlc_coalesced",
    "conv1d_nlc_double_buffered",
    "conv1d_nlc_mma_bf16",
    "conv1d_nlc_mma_fp16",
    "conv1d_nlc_mma_fp16x3",
    "conv1d_nlc_mma_tf32",
    "conv1d_nlc_register_tiled",
    "conv1d_nlc_tiled",
    "conv1d_nlc_vectorized",
    "conv1d_nlc_wgmma_bf16",
    "conv1d_nlc_wgmma_fp8",
    "conv1d_nlc_wgmma_fp16",
    "conv1d_nlc_wgmma_fp16x3",
    "conv1d_nlc_wgmma_tf32",
    "conv1d_nlc_winograd",
    "conv1d_nlc_winograd_lowered",
    "conv1d_relu_maxpool1d_nlc_double_buffered",
    "conv1d_relu_maxpool1d_nlc_mma_bf16",
    "conv1d_relu_maxpool1d_nlc_mma_fp16",
    "conv1d_relu_maxpool1d_nlc_mma_fp16x3",
    "conv1d_relu_maxpool1d_nlc_mma_tf32",
    "conv1d_relu_maxpool1d_nlc_wgmma_bf16",
    "conv1d_relu_maxpool1d_nlc_wgmma_fp8",
    "conv1d_relu_maxpool1d_nlc_wgmma_fp16",
    "conv1d_relu_maxpool1d_nlc_wgmma_fp16x3",
    "conv1d_relu_maxpool1d_nlc_wgmma_tf32",
    "conv1d_relu_maxpool1d_nlc_winograd",
    "conv1d_relu_maxpool1d_nlc_winograd_lowered",
    "conv1d_relu_nlc_double_buffered",
    "conv1d_relu_nlc_mma_bf16",
    "conv1d_relu_nlc_mma_fp16",
    "conv1d_relu_nlc_mma_fp16x3",
    "conv1d_relu_nlc_mma_tf32",
    "conv1d_relu_nlc_wgmma_bf16",
    "conv1d_relu_nlc_wgmma_fp8",
    "conv1d_relu_nlc_wgmma_fp16",
    "conv1d_relu_nlc_wgmma_fp16x3",
    "conv1d_relu_nlc_wgmma_tf32",
    "conv1d_relu_nlc_winograd",
    "conv1d_relu_nlc_winograd_lowered",
    "conv1d_stat_nlc_double_buffered",
    "conv1d_stat_nlc_mma_bf16",
    "conv1d_stat_nlc_mma_fp16",
    "conv1d_stat_nlc_mma_fp16x3",
    "conv1d_stat_nlc_mma_tf32",
    "conv1d_stat_nlc_wgmma_bf16",
    "conv1d_stat_nlc_wgmma_fp8",
    "conv1d_stat_nlc_wgmma_fp16",
    "conv1d_stat_nlc_wgmma_fp16x3",
    "conv1d_stat_nlc_wgmma_tf32",
    "conv1d_stat_nlc_winograd",
    "linear_nlc_mma_bf16",
    "linear_nlc_mma_fp16",
    "linear_nlc_mma_fp16x3",
    "linear_nlc_mma_tf32",
    "linear_nlc_wgmma_bf16",
    "linear_nlc_wgmma_fp8",
    "linear_nlc_wgmma_fp16",
    "linear_nlc_wgmma_fp16x3",
    "linear_nlc_wgmma_tf32",
    "linear_relu_nlc_mma_bf16",
    "linear_relu_nlc_mma_fp16",
    "linear_relu_nlc_mma_fp16x3",
    "linear_relu_nlc_mma_tf32",
    "linear_relu_nlc_wgmma_bf16",
    "linear_relu_nlc_wgmma_fp8",
    "linear_relu_nlc_wgmma_fp16",
    "linear_relu_nlc_wgmma_fp16x3",
    "linear_relu_nlc_wgmma_tf32",
]

__getattr__, __dir__ = lazy.names(__name__, __all__, "on_gpu")  # the CPU's levels do without CUDA
