"""Strong fusion of a chain of small convolutions: plan it, read the plan, compile it, call it.

layers = [Conv1d(256, 3), Relu(), Conv1d(256, 3), Stat()]
chain = plan(layers, in_channels=256, length=110)
print(chain.describe())
y, stat = chain.compile()(x, weights, biases)

Over images: plan([Conv2d(6, 5), Tanh(), MaxPool2d(2), Conv2d(16, 5)], in_shape=(1, 64, 64)).
"""

from charcnn.layers import Conv1d, Conv2d, LeakyRelu, MaxPool2d, Relu, Sigmoid, Tanh
from charcnn.ops.chain.fused import Fused
from charcnn.ops.chain.plan import Plan, Stat, plan
from charcnn.ops.chain.plan2d import Plan2d, Roofline, pyramid
from charcnn.ops.chain.plan_strips import StripPlan
from charcnn.ops.chain.step import Step
from charcnn.ops.chain.step2d import Step2d

__all__ = [
    "Conv1d",
    "Conv2d",
    "Fused",
    "LeakyRelu",
    "MaxPool2d",
    "Plan",
    "Plan2d",
    "Relu",
    "Roofline",
    "Sigmoid",
    "Stat",
    "Step",
    "Step2d",
    "StripPlan",
    "Tanh",
    "plan",
    "pyramid",
]
