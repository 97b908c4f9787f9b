"""The operators, importable by name: conv1d_loops, conv1d_naive, ...

A function's name is the operator, then the technique (`charcnn.catalog.TECHNIQUES` says what each is). All
techniques of an operator take the same arguments as its function in `reference`, and `out=`; those on a GPU also
`stream=`. A shape, dtype or layout that does not fit is a ValueError that names the argument.
"""

from charcnn.ops import reference
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
    conv1d_nlc_register_tiled,
    conv1d_nlc_tiled,
    conv1d_nlc_vectorized,
    conv1d_nlc_wgmma_bf16,
    conv1d_nlc_wgmma_fp16,
    conv1d_nlc_winograd,
    conv1d_relu_maxpool1d_nlc_double_buffered,
    conv1d_relu_maxpool1d_nlc_wgmma_bf16,
    conv1d_relu_maxpool1d_nlc_wgmma_fp16,
    conv1d_relu_maxpool1d_nlc_winograd,
    conv1d_relu_nlc_double_buffered,
    conv1d_relu_nlc_wgmma_bf16,
    conv1d_relu_nlc_wgmma_fp16,
    conv1d_relu_nlc_winograd,
    conv1d_stat_nlc_double_buffered,
    conv1d_stat_nlc_wgmma_bf16,
    conv1d_stat_nlc_wgmma_fp16,
    conv1d_stat_nlc_winograd,
    linear_nlc_wgmma_bf16,
    linear_nlc_wgmma_fp16,
    linear_relu_nlc_wgmma_bf16,
    linear_relu_nlc_wgmma_fp16,
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

__all__ = [
    "argmax_loops",
    "argmax_naive",
    "collapse_loops",
    "collapse_naive",
    "conv1d_loops",
    "conv1d_lowered",
    "conv1d_naive",
    "conv1d_nlc_coalesced",
    "conv1d_nlc_double_buffered",
    "conv1d_nlc_register_tiled",
    "conv1d_nlc_tiled",
    "conv1d_nlc_vectorized",
    "conv1d_nlc_wgmma_bf16",
    "conv1d_nlc_wgmma_fp16",
    "conv1d_nlc_winograd",
    "conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_pairs",
    "conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_whole",
    "conv1d_relu_lowered",
    "conv1d_relu_maxpool1d_naive",
    "conv1d_relu_maxpool1d_nlc_double_buffered",
    "conv1d_relu_maxpool1d_nlc_wgmma_bf16",
    "conv1d_relu_maxpool1d_nlc_wgmma_fp16",
    "conv1d_relu_maxpool1d_nlc_winograd",
    "conv1d_relu_naive",
    "conv1d_relu_nlc_double_buffered",
    "conv1d_relu_nlc_wgmma_bf16",
    "conv1d_relu_nlc_wgmma_fp16",
    "conv1d_relu_nlc_winograd",
    "conv1d_stat_naive",
    "conv1d_stat_nlc_double_buffered",
    "conv1d_stat_nlc_wgmma_bf16",
    "conv1d_stat_nlc_wgmma_fp16",
    "conv1d_stat_nlc_winograd",
    "layernorm_loops",
    "layernorm_naive",
    "layernorm_relu_maxpool1d_naive",
    "layernorm_relu_maxpool1d_nlc_bf16",
    "layernorm_relu_maxpool1d_nlc_coalesced",
    "layernorm_relu_maxpool1d_nlc_fp16",
    "layernorm_relu_naive",
    "linear_loops",
    "linear_lowered",
    "linear_naive",
    "linear_nlc_double_buffered",
    "linear_nlc_wgmma_bf16",
    "linear_nlc_wgmma_fp16",
    "linear_relu_linear_naive",
    "linear_relu_lowered",
    "linear_relu_naive",
    "linear_relu_nlc_double_buffered",
    "linear_relu_nlc_wgmma_bf16",
    "linear_relu_nlc_wgmma_fp16",
    "maxpool1d_loops",
    "maxpool1d_naive",
    "one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather",
    "one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather_bf16",
    "one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather_fp16",
    "one_hot_conv1d_lowered",
    "one_hot_conv1d_nlc_gather",
    "one_hot_conv1d_relu_maxpool1d_nlc_gather",
    "one_hot_conv1d_relu_maxpool1d_nlc_gather_bf16",
    "one_hot_conv1d_relu_maxpool1d_nlc_gather_fp16",
    "one_hot_conv1d_stat_nlc_lag_sums",
    "one_hot_conv1d_stat_nlc_lags",
    "one_hot_loops",
    "one_hot_naive",
    "one_hot_nlc_coalesced",
    "reference",
    "relu_loops",
    "relu_maxpool1d_naive",
    "relu_naive",
    "softmax_loops",
    "softmax_naive",
]
