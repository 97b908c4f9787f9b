"""The first convolution from token ids, which pick rows of the weights: by gathers on the CPU and on a GPU.

A file a technique; on a GPU, block 1 is one kernel, with its statistics from tables of the weights' products.
"""

# ruff: noqa: F403, F405 - an editor and mypy see the names that load later

from typing import TYPE_CHECKING

from charcnn import lazy
from charcnn.ops.one_hot_conv1d.lowered import OneHotConv1dBlock, one_hot_conv1d_lowered

if TYPE_CHECKING:
    from charcnn.ops.one_hot_conv1d.on_gpu import *

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

__getattr__, __dir__ = lazy.names(__name__, __all__, "on_gpu")  # the CPU's levels do without CUDA
