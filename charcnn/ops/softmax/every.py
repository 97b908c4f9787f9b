"""What `charcnn.ops.softmax` offers, imported."""

from charcnn.ops.softmax.loops import softmax_loops
from charcnn.ops.softmax.naive import softmax_naive

__all__ = ["softmax_loops", "softmax_naive"]
