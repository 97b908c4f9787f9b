"""The network's layers for one input or a few, each spread over the whole GPU: for latency, not throughput.

Kernels here may begin before the one before them on the stream has ended (programmatic dependent launch), and bring
their weights meanwhile.
"""

from charcnn.ops.spread.conv import (
    VARIANTS,
    SpreadConv,
    conv1d_nlc_spread_bf16,
    conv1d_nlc_spread_fp16,
    conv1d_relu_maxpool1d_nlc_spread_bf16,
    conv1d_relu_maxpool1d_nlc_spread_fp16,
    conv1d_relu_nlc_spread_bf16,
    conv1d_relu_nlc_spread_fp16,
)
from charcnn.ops.spread.linear import SpreadLinear
from charcnn.ops.spread.norm import affine, first, first_parts_shape, normalised

__all__ = [
    "VARIANTS",
    "SpreadConv",
    "SpreadLinear",
    "affine",
    "conv1d_nlc_spread_bf16",
    "conv1d_nlc_spread_fp16",
    "conv1d_relu_maxpool1d_nlc_spread_bf16",
    "conv1d_relu_maxpool1d_nlc_spread_fp16",
    "conv1d_relu_nlc_spread_bf16",
    "conv1d_relu_nlc_spread_fp16",
    "first",
    "first_parts_shape",
    "normalised",
]
