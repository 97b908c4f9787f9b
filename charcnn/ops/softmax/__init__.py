"""softmax: logits to probabilities; a file a technique."""

from typing import TYPE_CHECKING

from charcnn import lazy
from charcnn.ops.softmax.loops import softmax_loops

if TYPE_CHECKING:
    from charcnn.ops.softmax.naive import softmax_naive

__all__ = ["softmax_loops", "softmax_naive"]

__getattr__, __dir__ = lazy.names(__name__, __all__, "naive")  # what labels texts on a CPU does without CUDA
