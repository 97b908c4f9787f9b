"""The optimisation history: `python -m charcnn.levels.lK` runs step K, tK step K of training. See docs/levels.

Numba's simulator is a mode of the whole process, and a rank's cores are counted when Numba is imported: both are
settled before. `python -m charcnn.levels.lK` imports this package first, and there it settles them; that of a network,
`charcnn.networks`, imports it, too. Any other program that imports a level calls `prepare` itself, or runs on a GPU.
"""

from __future__ import annotations

import itertools
import re
import sys

from charcnn.gpu import simulator
from charcnn.host import cores


def prepare() -> None:
    """What an entry point does before Numba is imported: a rank's cores, and the simulator where there is no GPU."""
    cores.settle()
    simulator.choose()


if any(
    flag == "-m" and re.fullmatch(r"charcnn\.(levels\.[lt]\d+|networks\.\w+)", name)
    for flag, name in itertools.pairwise(sys.orig_argv)
):
    prepare()
