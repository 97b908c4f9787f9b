"""`--train FILE`: a network of images fitted to labelled ones, and what it then knows."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from charcnn import images
from charcnn.files import placing
from charcnn.model import params
from charcnn.networks import weights
from charcnn.training import images as fitting
from charcnn.training.measure import interval

if TYPE_CHECKING:
    from charcnn.networks.architecture import Architecture
    from charcnn.networks.runner.command import NetworkCommand

SHARE = 5
"""Every so-manyth digit of scikit-learn's is held out, as they come in no parts."""


def labelled(network: Architecture, name: str) -> tuple[images.Images, images.Images, tuple[str, ...]]:
    """Images to learn from, others to be asked about, and their classes' names.

    Raises:
        ValueError: the data are not there, or have no such name.
    """
    if name == "digits":
        return *digits(network), tuple(map(str, range(10)))
    sets = {"fashion-mnist": images.fashion_mnist, "mnist": images.mnist}
    if name not in sets:
        raise ValueError(f"--images {name}: to train, need one of digits, {', '.join(sets)}")
    parts = [sets[name](split, network.image, resize=True) for split in ("train", "test")]
    return parts[0], parts[1], images.FASHION_CLASSES if name == "fashion-mnist" else tuple(map(str, range(10)))


def digits(network: Architecture) -> tuple[images.Images, images.Images]:
    """scikit-learn's digits: those to learn from, and those that are held out; errors as of `charcnn.images.digits`."""
    read = images.digits(network.image)
    assert read.labels is not None
    out = np.arange(len(read.rows)) % SHARE == SHARE - 1
    source = f"the {out.sum():,} of {read.source} that the weights were not fitted to"
    learned = images.Images(read.rows[~out], read.source, read.labels[~out])
    return learned, images.Images(read.rows[out], source, read.labels[out])


def train(subject: NetworkCommand, chosen: argparse.Namespace) -> int:
    """Fit the network, ask it about images that it has not seen, and write its weights. Exit status: 0.

    Raises:
        ValueError: the data are missing, or PyTorch where it is asked for, or an option does not fit.
        OSError: the file cannot be written.
    """
    network = subject.architecture(chosen)
    if not chosen.train.endswith(".safetensors"):
        raise ValueError(f"--train {chosen.train}: need a name that ends in .safetensors")
    data = chosen.images or subject.page.DATA
    learned, asked, classes = labelled(network, data)
    engine = fitting.engine_of(chosen.engine)
    assert learned.labels is not None
    assert asked.labels is not None
    held = f"{len(asked.rows):,} held out"
    print(f"{subject.name}: {len(learned.rows):,} images of {data} to learn from, {held}, engine {engine}")
    found = fitting.train(
        network, params.init(network, chosen.seed), learned.rows, learned.labels, engine=engine,
        epochs=chosen.epochs, seed=chosen.seed, rate=chosen.rate, mirrored=data == "fashion-mnist",
        told=lambda epoch, loss: print(f"  epoch {epoch} of {chosen.epochs}: loss {loss:.4f}", flush=True),
    )  # fmt: skip
    program, build = subject.program(chosen)
    results = build(params.Params(found, network), network)(asked.rows)
    right = int((results.argmax(axis=1) == asked.labels).sum())
    low, high = interval(right, len(asked.rows))
    print(f"  {right:,} of {len(asked.rows):,} held out right: {right / len(asked.rows):.2%} ({low:.2%} to {high:.2%})")
    card = {"data": data, "epochs": chosen.epochs, "rate": chosen.rate, "seed": chosen.seed, "engine": engine}
    if engine == "torch":
        card["torch"] = version("torch")
    accuracy = {"right": right, "of": len(asked.rows), "interval": [low, high], "technique": program.name}
    with placing(chosen.train, force=chosen.force) as path:
        weights.save(path, network, found, classes=classes, accuracy=accuracy, **card)
    return 0
