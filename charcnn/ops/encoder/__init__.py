"""What an encoder of packed texts needs beside its products and attention: rows, heads and means.

The tokens of all inputs lie one behind another, a row each. `offsets` int32 (N + 1,) says in which row each input
begins; rows behind the last one belong to none.
"""
