"""Names of release 1.0 for prepared convolutions over images."""

from __future__ import annotations

from typing import Any

from charcnn.ops.common.former import former


def __getattr__(name: str) -> Any:
    return former(__name__, name)
