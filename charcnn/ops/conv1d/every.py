"""What `charcnn.ops.conv1d` offers, imported."""

from charcnn.ops.conv1d.loops import conv1d_loops
from charcnn.ops.conv1d.lowered import PackedConv1d, conv1d_lowered, conv1d_relu_lowered
from charcnn.ops.conv1d.naive import conv1d_naive, conv1d_relu_maxpool1d_naive, conv1d_relu_naive, conv1d_stat_naive

__all__ = [
    "PackedConv1d",
    "conv1d_loops",
    "conv1d_lowered",
    "conv1d_naive",
    "conv1d_relu_lowered",
    "conv1d_relu_maxpool1d_naive",
    "conv1d_relu_naive",
    "conv1d_stat_naive",
]
