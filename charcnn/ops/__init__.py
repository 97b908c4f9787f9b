"""The operators, importable by name: conv1d_loops, conv1d_naive, ...

A function's name is the operator, then the technique (`charcnn.catalog.TECHNIQUES` says what each is). All
techniques of an operator take the same arguments as its function in `reference`, and `out=`; those on a GPU also
`stream=`. A shape, dtype or layout that does not fit is a ValueError that names the argument.

Names load when one of them is first used, and then all: whoever imports a file of this package, as a CPU's levels do,
does not wait for CUDA.
"""

from typing import TYPE_CHECKING

from charcnn import lazy
from charcnn.ops import reference as reference

if TYPE_CHECKING:
    from charcnn.ops.every import *  # noqa: F403
else:
    __getattr__, __dir__ = lazy.names(__name__)
