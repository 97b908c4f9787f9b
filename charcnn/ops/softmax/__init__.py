"""softmax: logits to probabilities; a file a technique."""

from typing import TYPE_CHECKING

from charcnn import lazy

if TYPE_CHECKING:
    from charcnn.ops.softmax.every import *  # noqa: F403
else:
    __getattr__, __dir__ = lazy.names(__name__)
