"""mnist: a lecture's first network, one convolution and two dense layers, for digits of 28 x 28.

Layers: convolution 5 x 5 to 5 maps, padded by 2, without a bias > batch normalisation > max-pooling 2/2 > ReLU > dense
120 > ReLU > dense 10 > softmax. The convolution's stride is 1, or 2 (`stride2`). The lecture writes the network in C,
then in CUDA; its slides name no sizes, and these are its authors'. Fused operators fold batch normalisation into the
convolution, and ReLU and pooling change places: neither changes a result.
"""

from __future__ import annotations

from charcnn.layers import BatchNorm2d, Conv2d, Flatten, Layer, Linear, MaxPool2d, Pixels, Relu, Softmax

TITLE = "A lecture's small CNN for digits"

VARIANTS = ("stride1", "stride2", "tiny")
"""The first is what runs where none is asked for; `tiny` is for the simulator."""

DATA = "digits"
"""What it is trained on where nothing else is named."""

RAW = {
    "kernel": "conv.weight",
    "gamma": "norm.weight",
    "beta": "norm.bias",
    "mean": "norm.running_mean",
    "variance": "norm.running_var",
    "W1": "fc1.weight",
    "b1": "fc1.bias",
    "W2": "fc2.weight",
    "b2": "fc2.bias",
}
"""The lecture's files of raw float32 values, and the parameters that they hold."""


def layers(variant: str) -> tuple[Layer, ...]:
    """The variant's layers, from bytes to probabilities."""
    size, units = (12, 8) if variant == "tiny" else (28, 120)
    stride = 2 if variant == "stride2" else 1
    return (
        Pixels(1, size, size),
        Conv2d(5, 5, stride=stride, padding=2, bias=False, name="conv"),
        BatchNorm2d(eps=1e-3, name="norm"),
        MaxPool2d(2),
        Relu(),
        Flatten(),
        Linear(units, name="fc1"),
        Relu(),
        Linear(10, name="fc2"),
        Softmax(),
    )


if __name__ == "__main__":
    from charcnn.networks.runner.command import main

    main("mnist")
