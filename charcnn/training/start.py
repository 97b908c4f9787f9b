"""The weights that a training begins with: random ones, or the convolutions of another model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from charcnn.aliases import Record
from charcnn.config import Config
from charcnn.files import Path
from charcnn.layers import LayerNorm
from charcnn.model import params, shipped
from charcnn.text.encodings import Encoding

HEAD = "fc"
"""How the names of those layers begin that are not taken: classes and lengths decide them."""


def initialised(config: Config, seed: int) -> dict[str, np.ndarray]:
    """Weights and biases as PyTorch's own layers draw them, uniform within 1 / sqrt(fan-in): float32 by name.

    They are 0.4 of He's (2015, arXiv:1502.01852): logits begin near 0, and the step of AdamW, which is the same for
    large and small weights, turns features sooner. From He's, with texts changed at random, it stayed at chance.
    """
    rng, found = np.random.default_rng(seed), dict[str, np.ndarray]()
    for node in config.nodes:
        for name, shape in node.parameters.items():
            if isinstance(node.layer, LayerNorm):
                found[name] = np.full(shape, float(name.endswith("weight")), np.float32)
            else:
                bound = np.float32(math.prod(node.parameters[f"{node.layer.name}.weight"][1:]) ** -0.5)
                found[name] = (2 * rng.random(shape, np.float32) - 1) * bound
    return found


def read(name: Path, encoding: Encoding, config: Config | None) -> params.Params:
    """The model, which ships under this name, or is a file's.

    Args:
        name: of a model that ships, or a file.
        encoding: of the texts that are learned from.
        config: the sizes that are asked for; None for the model's own.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no model, has another encoding, or convolutions of other sizes.
    """
    model = shipped.load(name)
    if model.encoding not in (None, encoding):
        raise ValueError(f"init {name}: the model has the encoding {model.encoding.name}, not {encoding.name}")
    if config is not None:
        own, other = _convolutions(config), _convolutions(model.config)
        if own != other:
            what = ", ".join(f"{key} {other[key]}, not {own[key]}" for key in own if own[key] != other[key])
            raise ValueError(f"init {name}: the model's convolutions have {what}")
    model.metadata["name"] = str(name)
    return model


def _convolutions(config: Config) -> Record:
    return {
        "kernel_sizes": config.kernel_sizes,
        "channels": config.block_channels,
        "alphabet": config.alphabet,
        "layernorm": config.layernorm,
    }


def sizes(model: params.Params) -> Config:
    """The model's sizes for one label a text; classes follow from the rows."""
    return replace(model.config, multi_label=False)


def begun(arrays: Mapping[str, np.ndarray], model: params.Params) -> dict[str, np.ndarray]:
    """The arrays with the model's convolutions and their LayerNorms; these as far as both networks are long."""
    found = {name: value.copy() for name, value in arrays.items()}
    for name, value in found.items():
        if not name.startswith(HEAD):
            same = tuple(slice(min(a, b)) for a, b in zip(value.shape, model[name].shape, strict=True))
            value[same] = model[name][same]
    return found


def check_whole(model: params.Params | None, config: Config, classes: tuple[str, ...], sparse: str) -> None:
    """Refuse to prune what is not there: a sparse network begins with all layers of a model.

    Raises:
        ValueError: there is no model, or it has other sizes or classes; says so.
    """
    if model is None:
        raise ValueError(f"sparse {sparse} prunes a trained model: need init, which names it")
    for what, has, need in (("classes", model.classes, classes), ("sizes", model.config, config)):
        if has != need:
            raise ValueError(f"sparse {sparse}: init {model.metadata['name']} has the {what} {has}: need {need}")


def credited(model: params.Params, *, whole: bool = False) -> Record:
    """What a model that began so says of it: with the convolutions, or the `whole` of the other one."""
    return {"model" if whole else "convolutions": model.metadata["name"], "digest": params.digest(model)}
