"""Networks of images, a page each: `python -m charcnn.networks.NAME --as TECHNIQUE`. See docs/networks.md.

What must be settled before Numba is imported is so in `charcnn.levels`.
"""

from charcnn.levels import prepare as prepare
