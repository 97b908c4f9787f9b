"""The first convolution from token ids, which pick rows of the weights: by gathers on the CPU and on a GPU.

A file a technique; on a GPU, block 1 is one kernel, with its statistics from tables of the weights' products.
"""

from typing import TYPE_CHECKING

from charcnn import lazy

if TYPE_CHECKING:
    from charcnn.ops.one_hot_conv1d.every import *  # noqa: F403
else:
    __getattr__, __dir__ = lazy.names(__name__)
