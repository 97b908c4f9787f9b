"""conv1d on channels-last features as a matrix product, in the order in which the history improved it.

Rows are output positions, columns output channels, and the depth is K * C_in: row t is the run x[n, t : t + K], which
lies in one piece, so rows overlap in memory and nothing is ever copied out ("implicit GEMM").
"""

from typing import TYPE_CHECKING

from charcnn import lazy

if TYPE_CHECKING:
    from charcnn.ops.conv1d_nlc.every import *  # noqa: F403
else:
    __getattr__, __dir__ = lazy.names(__name__)
