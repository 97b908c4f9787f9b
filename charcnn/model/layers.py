"""`charcnn.layers` by the name that it had up to 1.0."""

from __future__ import annotations

import warnings
from typing import Any

from charcnn import layers


def __getattr__(name: str) -> Any:
    found = getattr(layers, name)
    warnings.warn(f"charcnn.model.layers.{name} is now charcnn.layers.{name}", DeprecationWarning, stacklevel=2)
    return found
