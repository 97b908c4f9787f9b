"""conv1d: cross-correlation over positions; a file a technique, in the order in which the history improved it."""

from typing import TYPE_CHECKING

from charcnn import lazy
from charcnn.ops.conv1d.loops import conv1d_loops
from charcnn.ops.conv1d.lowered import PackedConv1d, conv1d_lowered, conv1d_relu_lowered

if TYPE_CHECKING:
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

__getattr__, __dir__ = lazy.names(__name__, __all__, "naive")  # the CPU's levels do without CUDA
