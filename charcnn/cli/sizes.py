"""The network's sizes, as an option of a subcommand says them."""

from __future__ import annotations

import json

from charcnn.config import SMALL, TINY, Config

NAMED = {"small": SMALL, "large": Config(channels=1024, units=2048), "tiny": TINY}
"""The paper's two sizes, and one for tests."""

HELP = f"the network's size: {', '.join(NAMED)}, or JSON of what differs from small"


def config_of(given: str) -> Config:
    """One of NAMED, or what JSON says.

    Raises:
        ValueError: it is neither, or no network has these sizes.
    """
    if given in NAMED:
        return NAMED[given]
    try:
        return Config(**json.loads(given))
    except (ValueError, TypeError) as error:
        raise ValueError(f"--config {given}: need {', '.join(NAMED)}, or sizes as JSON ({error})") from error
