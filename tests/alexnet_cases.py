"""AlexNet's convolutions as torchvision has them, the first one over blocks of pixels."""

from __future__ import annotations

POOL = (3, 2)

ALEXNET = {
    "features.0": ((57, 57, 48), (3, 3, 48, 64), {"pool": POOL}),
    "features.3": ((27, 27, 64), (5, 5, 64, 192), {"padding": 2, "pool": POOL}),
    "features.6": ((13, 13, 192), (3, 3, 192, 384), {"padding": 1}),
    "features.8": ((13, 13, 384), (3, 3, 384, 256), {"padding": 1}),
    "features.10": ((13, 13, 256), (3, 3, 256, 256), {"padding": 1, "pool": POOL}),
}
"""torchvision's: shapes of an image and of the weight, and how windows move."""
