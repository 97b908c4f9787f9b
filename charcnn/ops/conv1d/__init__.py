"""conv1d: cross-correlation over positions; a file a technique, in the order in which the history improved it."""

from typing import TYPE_CHECKING

from charcnn import lazy

if TYPE_CHECKING:
    from charcnn.ops.conv1d.every import *  # noqa: F403
else:
    __getattr__, __dir__ = lazy.names(__name__)
