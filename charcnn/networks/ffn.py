"""ffn: a transformer's feed-forward block, H > 4 H > H, which spends its time in two matrix products.

An input is one row of H features, a token's; a sequence of L tokens is L inputs. Bytes stand for features from -2 to 2,
so that rows travel as images do. The activation is GELU, or ReLU in the variants that end in -relu.
"""

from __future__ import annotations

from charcnn.layers import Flatten, Gelu, Layer, Linear, Pixels, Relu

TITLE = "A transformer's feed-forward block"

VARIANTS = ("768", "1024", "768-relu", "1024-relu", "tiny")
"""The first is what runs where none is asked for; `tiny` is for the simulator."""


def layers(variant: str) -> tuple[Layer, ...]:
    """The variant's layers, from bytes to features."""
    units = 16 if variant == "tiny" else int(variant.removesuffix("-relu"))
    between = Relu() if variant.endswith("-relu") else Gelu()
    scaled = Pixels(1, 1, units, mean=(0.5,), std=(0.25,))
    return scaled, Flatten(), Linear(4 * units, name="fc1"), between, Linear(units, name="fc2")


if __name__ == "__main__":
    from charcnn.networks.runner.command import main

    main("ffn")
