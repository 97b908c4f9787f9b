"""ece408: a course project's network, whose two convolutions students make fast on a GPU.

Layers: Fashion-MNIST resized to 64 x 64 > convolution 5 x 5 to 6 maps > tanh > max-pooling 2/2 > convolution 5 x 5 to
16 maps > dense 140 > tanh > dense 10 > softmax; convolutions without a bias. The sizes are the course's. Students
report two op times, those of the convolutions, at 10, 100 and 10,000 images (`python bench/op_times.py`).
"""

from __future__ import annotations

from charcnn.layers import Conv2d, Flatten, Layer, Linear, MaxPool2d, Pixels, Softmax, Tanh

TITLE = "A course project's CNN, timed by its two convolutions"

VARIANTS = ("64", "tiny")
"""The first is what runs where none is asked for; `tiny` is for the simulator."""

DATA = "fashion-mnist"
"""What it is trained on where nothing else is named."""


def layers(variant: str) -> tuple[Layer, ...]:
    """The variant's layers, from bytes to probabilities."""
    size, units = (16, 8) if variant == "tiny" else (64, 140)
    return (
        Pixels(1, size, size),
        Conv2d(6, 5, bias=False, name="conv1"),
        Tanh(),
        MaxPool2d(2),
        Conv2d(16, 5, bias=False, name="conv2"),
        Flatten(),
        Linear(units, name="fc1"),
        Tanh(),
        Linear(10, name="fc2"),
        Softmax(),
    )


if __name__ == "__main__":
    from charcnn.networks.runner.command import main

    main("ece408")
