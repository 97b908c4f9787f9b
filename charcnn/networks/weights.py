"""Weights of networks of images: a file with a card of what they are, a state_dict, or a folder of raw arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save as to_bytes

from charcnn.files import replacing
from charcnn.model import params
from charcnn.model.params import Params
from charcnn.networks.architecture import Architecture
from charcnn.ops.common.arrays import unpack

CARD = "card"
"""Metadata of a file: JSON of network, variant, classes, accuracy, and how it was trained."""

LAYOUTS = ("pytorch", "tensorflow")
"""Of a folder of raw arrays: OIHW and (units, C), or HWIO and (C, units) with dense rows in the order H, W, C."""


def shipped(network: Architecture) -> Path | None:
    """The file that ships for this network; None where there is none."""
    path = Path(str(files("charcnn.networks"))) / "trained" / f"{network.name}-{network.variant}.safetensors"
    return path if path.is_file() else None


def load(path: str | os.PathLike[str], network: Architecture, raw: Mapping[str, str], layout: str) -> Params:
    """Weights from a .safetensors file or a .pt one, or from a folder of raw arrays.

    Args:
        path: the file, or the folder.
        network: whose names and shapes they must have.
        raw: names of a folder's files, and the parameter that each holds; empty where the network has none.
        layout: of a folder's arrays, one of LAYOUTS.

    Raises:
        ValueError: what is there does not fit; names the file and what is needed.
        OSError: it cannot be read.
    """
    if os.path.isdir(path):
        return _raw(Path(path), network, raw, layout)
    if os.fspath(path).endswith(".bin"):
        raise ValueError(f"{os.fspath(path)}: need .safetensors, .pt, .pth, or a folder of raw arrays")
    found = params.load(path, network)
    if os.fspath(path).endswith(".safetensors"):
        with safe_open(path, "numpy") as file:
            card = json.loads((file.metadata() or {}).get(CARD, "{}"))
        if isinstance(card, dict) and len(card.get("classes") or ()) == network.classes:
            found.classes, found.metadata = tuple(card["classes"]), card
    return found


def save(path: str | os.PathLike[str], network: Architecture, values: Mapping[str, np.ndarray], **card: Any) -> None:
    """Write weights and their card; a file that is there stays as it is until the new one is whole.

    Raises:
        ValueError: they are not the network's, or the name ends otherwise.
        OSError: the file cannot be written.
    """
    if not os.fspath(path).endswith(".safetensors"):
        raise ValueError(f"{os.fspath(path)}: need a name that ends in .safetensors")
    params.check(values, network)
    said = {CARD: json.dumps({"network": network.name, "variant": network.variant, **card})}
    arrays = {name: np.ascontiguousarray(values[name]) for name in network.parameter_shapes}
    with replacing(path, "wb") as file:
        file.write(to_bytes(arrays, said))


def _raw(folder: Path, network: Architecture, raw: Mapping[str, str], layout: str) -> Params:
    if not raw:
        raise ValueError(f"{folder}: {network.name} has no raw arrays: need a .safetensors or a .pt file")
    owners = {name: node for node in network.nodes for name in node.parameters}
    values = {}
    for name, parameter in raw.items():
        shape, path = network.parameter_shapes[parameter], folder / name
        found = np.fromfile(path, "<f4").astype(np.float32, copy=False)
        size = int(np.prod(shape))
        if found.size != size or path.stat().st_size != 4 * size:
            held = f"{path.stat().st_size} bytes"
            raise ValueError(f"{path} has {held}: need {4 * size}, {size} float32 values, for {parameter} {shape}")
        if layout == "tensorflow" and len(shape) > 1:
            flattened = owners[parameter].flattened
            if flattened is not None:  # rows of H, W, C
                c, h, w = flattened
                found = found.reshape(h, w, c, shape[0]).transpose(3, 2, 0, 1)
            else:
                found = unpack(found.reshape(*shape[2:], shape[1], shape[0]))
        values[parameter] = np.ascontiguousarray(found.reshape(shape))
    made = Params(values, network)
    try:
        params.check(made, network)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    return made
