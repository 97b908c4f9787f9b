"""conv1d: cross-correlation over positions; a file a technique, in the order in which the history improved it.

Names with nlc take channels-last features, as a matrix product: rows are output positions, columns output channels, and
the depth is K * C_in. Row t is the run x[n, t : t + K], which lies in one piece, so rows overlap in memory and nothing
is ever copied out ("implicit GEMM").
"""
