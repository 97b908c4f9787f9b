"""fused4: four small convolutions on 28 x 28, with which a project's authors measured what fusing layers brings.

Layers: convolution 5 x 5 to 6 maps, padded by 2 > 4 x 4 to 16 maps with stride 2 > 3 x 3 to 8 maps, padded by 1 > 3 x 3
to 4 maps, ReLU after each > dense 10. One kernel may compute one, two, three or all four convolutions, with one block
per image or per tile of the last map. `--plan` prints what each way computes twice and moves (`charcnn.ops.chain`).
"""

from __future__ import annotations

from charcnn.layers import Conv2d, Flatten, Layer, Linear, Pixels, Relu

TITLE = "Four convolutions to fuse"

VARIANTS = ("28", "tiny")
"""The first is what runs where none is asked for; `tiny` is for the simulator."""

DATA = "fashion-mnist"
"""What it is trained on where nothing else is named."""


def layers(variant: str) -> tuple[Layer, ...]:
    """The variant's layers, from bytes to logits."""
    size = 14 if variant == "tiny" else 28
    return (
        Pixels(1, size, size),
        Conv2d(6, 5, padding=2, name="conv1"),
        Relu(),
        Conv2d(16, 4, stride=2, name="conv2"),
        Relu(),
        Conv2d(8, 3, padding=1, name="conv3"),
        Relu(),
        Conv2d(4, 3, name="conv4"),
        Relu(),
        Flatten(),
        Linear(10, name="fc"),
    )


if __name__ == "__main__":
    from charcnn.networks.runner.command import main

    main("fused4")
