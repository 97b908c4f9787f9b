"""What `charcnn.ops.one_hot_conv1d` has from CUDA's files, imported."""

# ruff: noqa: F401 - the package offers them

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
