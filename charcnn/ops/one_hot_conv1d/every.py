"""What `charcnn.ops.one_hot_conv1d` offers, imported."""

from charcnn.ops.one_hot_conv1d.gather import (
    one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather,
    one_hot_conv1d_nlc_gather,
    one_hot_conv1d_relu_maxpool1d_nlc_gather,
)
from charcnn.ops.one_hot_conv1d.gather_block import GatherBlock
from charcnn.ops.one_hot_conv1d.gather_half import (
    HalfBlock,
    one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather_bf16,
    one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather_fp16,
    one_hot_conv1d_relu_maxpool1d_nlc_gather_bf16,
    one_hot_conv1d_relu_maxpool1d_nlc_gather_fp16,
)
from charcnn.ops.one_hot_conv1d.lag_sums import LagSums, one_hot_conv1d_stat_nlc_lag_sums
from charcnn.ops.one_hot_conv1d.lags import LagTables, one_hot_conv1d_stat_nlc_lags
from charcnn.ops.one_hot_conv1d.lowered import OneHotConv1dBlock, one_hot_conv1d_lowered

__all__ = [
    "GatherBlock",
    "HalfBlock",
    "LagSums",
    "LagTables",
    "OneHotConv1dBlock",
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
]
