"""The first convolution from token ids: weights picked by character, statistics from tables, block 1 in one kernel."""

from charcnn.ops.one_hot_conv1d.gather import (
    one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather,
    one_hot_conv1d_nlc_gather,
    one_hot_conv1d_relu_maxpool1d_nlc_gather,
)
from charcnn.ops.one_hot_conv1d.lags import LagTables, one_hot_conv1d_stat_nlc_lags

__all__ = [
    "LagTables",
    "one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather",
    "one_hot_conv1d_nlc_gather",
    "one_hot_conv1d_relu_maxpool1d_nlc_gather",
    "one_hot_conv1d_stat_nlc_lags",
]
