"""Strong fusion of a chain of small convolutions: plan it, read the plan, compile it, call it.

layers = [Conv1d(256, 3), Relu(), Conv1d(256, 3), Stat()]
chain = plan(layers, in_channels=256, length=110)
print(chain.describe())
y, stat = chain.compile()(x, weights, biases)
"""

from charcnn.model.layers import Conv1d, Relu
from charcnn.ops.chain.blocks import (
    conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_pairs,
    conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_whole,
)
from charcnn.ops.chain.fused import Fused
from charcnn.ops.chain.plan import Plan, Stat, plan
from charcnn.ops.chain.step import Step

__all__ = [
    "Conv1d",
    "Fused",
    "Plan",
    "Relu",
    "Stat",
    "Step",
    "conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_pairs",
    "conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_whole",
    "plan",
]
