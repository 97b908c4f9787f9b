"""Chains of networks, launched at their sizes: for `offline_build`."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import numpy as np

from charcnn.layers import BatchNorm2d, Flatten, LocalResponseNorm, Relu, Tanh
from charcnn.networks import alexnet, ece408, fused4, mnist
from charcnn.ops import chain


def image_chains(method: str) -> None:
    """Launch plans of networks' chains at their sizes: AlexNet's first two layers, and four small convolutions."""
    pair = [layer for layer in alexnet.layers("2012")[1:9] if not isinstance(layer, LocalResponseNorm)]
    four = [Tanh() if isinstance(layer, Relu) else layer for layer in fused4.layers("28")[1:9]]
    four[4] = replace(four[4], bias=False)
    for links, shape, precision in ((pair, (3, 227, 227), "fp16"), (four, (1, 28, 28), "fp32")):
        made = chain.plan(links, in_shape=shape, method=method, precision=precision, batch=1024)
        weights = [np.zeros(size, np.float32) for size in made.parameter_shapes]
        biases = [weight[:, 0, 0, 0].copy() if own else None for weight, own in zip(weights, made.biased, strict=True)]
        made.compile()(np.zeros((1, *shape), np.float32), weights, biases)


def mma_chains() -> None:
    """Launch networks' chains on tensor cores; bf16 is some words in fp16's kernels."""
    for page in (fused4, ece408, mnist):
        pixels, *layers = page.layers(page.VARIANTS[0])
        before = takewhile(lambda layer: not isinstance(layer, Flatten), layers)
        links = [layer for layer in before if not isinstance(layer, BatchNorm2d)]
        made = chain.plan(links, in_shape=(1, pixels.height, pixels.width), method="mma", precision="fp16")
        weights = [np.zeros(size, np.float32) for size in made.parameter_shapes]
        biases = [
            np.zeros(len(weight), np.float32) if made.links[i].bias else None
            for i, weight in zip(made.convolutions, weights, strict=True)
        ]
        made.prepare(weights, biases, np.zeros((1, 256), np.float32))(
            np.zeros((1, 1, pixels.height, pixels.width), np.uint8)
        )
    _strip_chains()


def _strip_chains() -> None:
    """Launch AlexNet's first two layers on tensor cores, of both variants, by rolling strips."""
    for variant, count, side in (("2012", 9, 227), ("torchvision", 7, 224)):
        links, shape = alexnet.layers(variant)[1:count], (3, side, side)
        made = chain.plan(links, in_shape=shape, method="mma", walk="rolling", precision="fp16", batch=1024)
        weights = [np.zeros(size, np.float32) for size in made.parameter_shapes]
        biases = [np.zeros(len(weight), np.float32) for weight in weights]
        made.prepare(weights, biases, np.zeros((3, 256), np.float32))(np.zeros((1, *shape), np.uint8))
