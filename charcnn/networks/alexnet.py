"""alexnet: ImageNet's network of 2012, and torchvision's form of it.

`2012`, 60,965,224 parameters (Krizhevsky, Sutskever, Hinton 2012): 227 x 227 x 3 > convolution 11 x 11 with stride 4 to
96 maps > local response normalisation > max-pooling 3/2 > 5 x 5 to 256 maps in two groups > the same two > 3 x 3 to
384, to 384 in two groups, to 256 in two groups > pooling > dense 4096, 4096, 1000 > softmax, ReLU after each but the
last. The groups are the paper's two GPUs.

`torchvision`, 61,100,840 parameters: 224 x 224, 64-192-384-256-256 maps without groups or normalisation. It has
torchvision's names, so that its weights load; results are logits.
"""

from __future__ import annotations

from charcnn.layers import (
    Conv2d,
    Flatten,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Pixels,
    Relu,
    Softmax,
)

TITLE = "ImageNet's network of 2012"

VARIANTS = ("2012", "torchvision", "tiny")
"""The first is what runs where none is asked for; `tiny` is for the simulator."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's pixels, by channel, as torchvision's weights expect."""

NORM = LocalResponseNorm(size=5, alpha=5e-4, beta=0.75, k=2.0)
"""The paper's n = 5, alpha = 1e-4, beta = 0.75, k = 2 in PyTorch's terms, where alpha is divided by n."""


def layers(variant: str) -> tuple[Layer, ...]:
    """The variant's layers, from bytes to probabilities, or torchvision's to logits."""
    return _torchvision() if variant == "torchvision" else _2012(tiny=variant == "tiny")


def _2012(*, tiny: bool) -> tuple[Layer, ...]:
    size, units, classes, share = (67, 8, 10, 24) if tiny else (227, 4096, 1000, 1)
    pool = MaxPool2d(3, 2)
    return (
        Pixels(3, size, size, MEAN, STD),
        Conv2d(96 // share, 11, stride=4, name="conv1"),
        Relu(),
        NORM,
        pool,
        Conv2d(256 // share // 2 * 2, 5, padding=2, groups=2, name="conv2"),
        Relu(),
        NORM,
        pool,
        Conv2d(384 // share, 3, padding=1, name="conv3"),
        Relu(),
        Conv2d(384 // share, 3, padding=1, groups=2, name="conv4"),
        Relu(),
        Conv2d(256 // share // 2 * 2, 3, padding=1, groups=2, name="conv5"),
        Relu(),
        pool,
        Flatten(),
        Linear(units, name="fc6"),
        Relu(),
        Linear(units, name="fc7"),
        Relu(),
        Linear(classes, name="fc8"),
        Softmax(),
    )


def _torchvision() -> tuple[Layer, ...]:
    pool = MaxPool2d(3, 2)
    return (
        Pixels(3, 224, 224, MEAN, STD),
        Conv2d(64, 11, stride=4, padding=2, name="features.0"),
        Relu(),
        pool,
        Conv2d(192, 5, padding=2, name="features.3"),
        Relu(),
        pool,
        Conv2d(384, 3, padding=1, name="features.6"),
        Relu(),
        Conv2d(256, 3, padding=1, name="features.8"),
        Relu(),
        Conv2d(256, 3, padding=1, name="features.10"),
        Relu(),
        pool,
        Flatten(),
        Linear(4096, name="classifier.1"),
        Relu(),
        Linear(4096, name="classifier.4"),
        Relu(),
        Linear(1000, name="classifier.6"),
    )


if __name__ == "__main__":
    from charcnn.networks.runner.command import main

    main("alexnet")
