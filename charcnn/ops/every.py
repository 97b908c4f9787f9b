"""All operators, imported: `charcnn.ops` has them from here."""

# ruff: noqa: F401 - the package offers them

from charcnn.ops.argmax import argmax_loops, argmax_naive
from charcnn.ops.chain import (
    conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_pairs,
    conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_whole,
)
from charcnn.ops.collapse import collapse_loops, collapse_naive
from charcnn.ops.conv1d import (
    conv1d_loops,
    conv1d_lowered,
    conv1d_naive,
    conv1d_relu_lowered,
    conv1d_relu_maxpool1d_naive,
    conv1d_relu_naive,
    conv1d_stat_naive,
)
from charcnn.ops.conv1d_nlc import (
    conv1d_nlc_coalesced,
    conv1d_nlc_double_buffered,
    conv1d_nlc_mma_bf16,
    conv1d_nlc_mma_fp16,
    conv1d_nlc_mma_fp16x3,
    conv1d_nlc_mma_tf32,
    conv1d_nlc_register_tiled,
    conv1d_nlc_tiled,
    conv1d_nlc_vectorized,
    conv1d_nlc_wgmma_bf16,
    conv1d_nlc_wgmma_fp8,
    conv1d_nlc_wgmma_fp16,
    conv1d_nlc_wgmma_fp16x3,
    conv1d_nlc_wgmma_tf32,
    conv1d_nlc_winograd,
    conv1d_nlc_winograd_lowered,
    conv1d_relu_maxpool1d_nlc_double_buffered,
    conv1d_relu_maxpool1d_nlc_mma_bf16,
    conv1d_relu_maxpool1d_nlc_mma_fp16,
    conv1d_relu_maxpool1d_nlc_mma_fp16x3,
    conv1d_relu_maxpool1d_nlc_mma_tf32,
    conv1d_relu_maxpool1d_nlc_wgmma_bf16,
    conv1d_relu_maxpool1d_nlc_wgmma_fp8,
    conv1d_relu_maxpool1d_nlc_wgmma_fp16,
    conv1d_relu_maxpool1d_nlc_wgmma_fp16x3,
    conv1d_relu_maxpool1d_nlc_wgmma_tf32,
    conv1d_relu_maxpool1d_nlc_winograd,
    conv1d_relu_maxpool1d_nlc_winograd_lowered,
    conv1d_relu_nlc_double_buffered,
    conv1d_relu_nlc_mma_bf16,
    conv1d_relu_nlc_mma_fp16,
    conv1d_relu_nlc_mma_fp16x3,
    conv1d_relu_nlc_mma_tf32,
    conv1d_relu_nlc_wgmma_bf16,
    conv1d_relu_nlc_wgmma_fp8,
    conv1d_relu_nlc_wgmma_fp16,
    conv1d_relu_nlc_wgmma_fp16x3,
    conv1d_relu_nlc_wgmma_tf32,
    conv1d_relu_nlc_winograd,
    conv1d_relu_nlc_winograd_lowered,
    conv1d_stat_nlc_double_buffered,
    conv1d_stat_nlc_mma_bf16,
    conv1d_stat_nlc_mma_fp16,
    conv1d_stat_nlc_mma_fp16x3,
    conv1d_stat_nlc_mma_tf32,
    conv1d_stat_nlc_wgmma_bf16,
    conv1d_stat_nlc_wgmma_fp8,
    conv1d_stat_nlc_wgmma_fp16,
    conv1d_stat_nlc_wgmma_fp16x3,
    conv1d_stat_nlc_wgmma_tf32,
    conv1d_stat_nlc_winograd,
    linear_nlc_mma_bf16,
    linear_nlc_mma_fp16,
    linear_nlc_mma_fp16x3,
    linear_nlc_mma_tf32,
    linear_nlc_wgmma_bf16,
    linear_nlc_wgmma_fp8,
    linear_nlc_wgmma_fp16,
    linear_nlc_wgmma_fp16x3,
    linear_nlc_wgmma_tf32,
    linear_relu_nlc_mma_bf16,
    linear_relu_nlc_mma_fp16,
    linear_relu_nlc_mma_fp16x3,
    linear_relu_nlc_mma_tf32,
    linear_relu_nlc_wgmma_bf16,
    linear_relu_nlc_wgmma_fp8,
    linear_relu_nlc_wgmma_fp16,
    linear_relu_nlc_wgmma_fp16x3,
    linear_relu_nlc_wgmma_tf32,
)
from charcnn.ops.layernorm import layernorm_loops, layernorm_naive, layernorm_relu_naive
from charcnn.ops.layernorm_relu_maxpool1d import layernorm_relu_maxpool1d_naive
from charcnn.ops.layernorm_relu_maxpool1d_nlc import layernorm_relu_maxpool1d_nlc_coalesced
from charcnn.ops.layernorm_relu_maxpool1d_nlc_half import (
    layernorm_relu_maxpool1d_nlc_bf16,
    layernorm_relu_maxpool1d_nlc_fp16,
)
from charcnn.ops.linear import linear_loops, linear_lowered, linear_naive, linear_relu_lowered, linear_relu_naive
from charcnn.ops.linear_nlc import linear_nlc_double_buffered, linear_relu_nlc_double_buffered
from charcnn.ops.linear_relu_linear import linear_relu_linear_naive
from charcnn.ops.maxpool1d import maxpool1d_loops, maxpool1d_naive, relu_maxpool1d_naive
from charcnn.ops.one_hot import one_hot_loops, one_hot_naive
from charcnn.ops.one_hot_conv1d import (
    one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather,
    one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather_bf16,
    one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather_fp16,
    one_hot_conv1d_lowered,
    one_hot_conv1d_nlc_gather,
    one_hot_conv1d_relu_maxpool1d_nlc_gather,
    one_hot_conv1d_relu_maxpool1d_nlc_gather_bf16,
    one_hot_conv1d_relu_maxpool1d_nlc_gather_fp16,
    one_hot_conv1d_stat_nlc_lag_sums,
    one_hot_conv1d_stat_nlc_lags,
)
from charcnn.ops.one_hot_nlc import one_hot_nlc_coalesced
from charcnn.ops.relu import relu_loops, relu_naive
from charcnn.ops.softmax import softmax_loops, softmax_naive
from charcnn.ops.spread import (
    conv1d_nlc_spread_bf16,
    conv1d_nlc_spread_fp16,
    conv1d_relu_maxpool1d_nlc_spread_bf16,
    conv1d_relu_maxpool1d_nlc_spread_fp16,
    conv1d_relu_nlc_spread_bf16,
    conv1d_relu_nlc_spread_fp16,
)
