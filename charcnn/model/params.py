"""Named weights: initialise, check, save and load."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from charcnn.aliases import Record
from charcnn.config import Config
from charcnn.files import Path, replacing
from charcnn.layers import BatchNorm2d, Layer, LayerNorm, Network, OneHot, RowNorm
from charcnn.model.model_files import Header, check_shapes, read_bin, read_safetensors, read_torch
from charcnn.text.encodings import Encoding, find_encoding

NORMS = (LayerNorm, BatchNorm2d, RowNorm)


class Params(dict[str, np.ndarray]):
    """The network's weights: name -> float32 array, as in `Config.parameter_shapes`.

    Args:
        values: the arrays.
        config: the network that they belong to: a Config, or another one.
        encoding: the one that they were trained with, or None where it is not known.
        classes: the classes' names, or None.
        metadata: whatever else their file says: name -> JSON value.
    """

    def __init__(
        self,
        values: Mapping[str, np.ndarray],
        config: Any,
        encoding: Encoding | None = None,
        classes: tuple[str, ...] | None = None,
        metadata: Record | None = None,
    ) -> None:
        super().__init__(values)
        self.config = config
        self.encoding = encoding
        self.classes = classes
        self.metadata = metadata or {}


def init(config: Network, seed: int = 0) -> Params:
    """Random weights, equal on every platform for equal seeds.

    Weights are uniform with variance 2 / fan-in (He et al. 2015, arXiv:1502.01852), so that features keep their scale
    through ReLU; conv1 sees a single one a column, so that its variance is 1 / kernel size. Biases and beta are
    uniform within 0.1 of 0, gamma within 0.25 of 1: small, yet a missed or swapped one shows.

    Args:
        config: the sizes.
        seed: a non-negative int.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed={seed!r}: need a non-negative int")
    rng = np.random.default_rng(seed)
    params = Params({}, config)
    before: Layer | None = None
    for node in config.nodes:
        for name, shape in node.parameters.items():
            centre, spread = 0.0, 0.1
            if name.endswith("running_var") or (name.endswith(".weight") and isinstance(node.layer, NORMS)):
                centre, spread = 1.0, 0.25
            elif name.endswith(".weight"):
                variance = 1 / shape[2] if isinstance(before, OneHot) else 2 / math.prod(shape[1:])
                spread = math.sqrt(3 * variance)
            uniform = rng.random(
                shape, np.float32
            )  # its bits are exact; a normal's depend on the C library's logarithm
            params[name] = np.float32(2 * spread) * uniform + np.float32(centre - spread)
        before = node.layer
    return params


def check(params: Mapping[str, np.ndarray], config: Network) -> None:
    """Raise ValueError unless the arrays are just those that the config names: shape, float32, all finite."""
    for name, array in params.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is a {type(array).__name__}: need a float32 NumPy array")
        if array.dtype != np.float32:
            raise ValueError(f"{name} has dtype {array.dtype}: need float32")
    check_shapes({name: array.shape for name, array in params.items()}, config)
    for name in config.parameter_shapes:
        array = params[name]
        finite = np.isfinite(array)
        if not finite.all():
            index = tuple(int(i) for i in np.unravel_index(np.argmin(finite), array.shape))
            raise ValueError(f"{name} holds {array[index]} at {list(index)}: need finite values")


def digest(params: Mapping[str, np.ndarray]) -> str:
    """16 hexadecimal digits that tell these weights from others."""
    found = hashlib.sha256()
    for name in sorted(params):
        found.update(name.encode())
        found.update(np.ascontiguousarray(params[name]).data)
    return found.hexdigest()[:16]


def save(
    path: Path,
    params: Mapping[str, np.ndarray],
    config: Config,
    *,
    encoding: str | Encoding | None = None,
    classes: Iterable[str] | None = None,
    accuracy: float | None = None,
    dtype: str = "float32",
    **metadata: Any,
) -> None:
    """Write weights; a file that is there stays as it is until the new one is whole.

    Args:
        path: ends in `.safetensors`, which keeps everything, or in `.bin`: the original program's params.bin,
            little-endian float32 in the order of `Config.parameter_shapes`, no header, the weights alone.
        params: name -> float32 array. What a `Params` says of encoding, classes and metadata is written too, where
            the arguments below don't say otherwise.
        config: the sizes.
        encoding: the one that the weights were trained with; all of its fields are stored.
        classes: the classes' names, as many as config.classes, no two the same: with no control characters and no
            blanks at the ends, as `charcnn.text.names` has it.
        accuracy: share of right answers, 0 to 1.
        dtype: "float32", or "float16" for a .safetensors file of half the size; `load` gives float32 in either case.
        metadata: more to store, as JSON values.

    Raises:
        ValueError: params do not fit the config, another argument does not fit, or the suffix is another.
        OSError: the file cannot be written.
    """
    check(params, config)
    if dtype not in ("float32", "float16"):
        raise ValueError(f"dtype={dtype!r}: need 'float32' or 'float16'")
    suffix = _suffix(path)
    if suffix == ".bin":
        if encoding is not None or classes is not None or accuracy is not None or dtype != "float32" or metadata:
            raise ValueError(f"{path}: a .bin file holds only float32 weights; save more as .safetensors")
        with replacing(path, "wb") as file:
            for name in config.parameter_shapes:
                file.write(np.ascontiguousarray(params[name], "<f4").data)
    elif suffix == ".safetensors":
        if isinstance(params, Params):
            encoding = params.encoding if encoding is None else encoding
            classes = params.classes if classes is None else classes
            metadata = {**params.metadata, **metadata}
        if accuracy is not None:
            if not hasattr(accuracy, "__float__") or not 0 <= accuracy <= 1:
                raise ValueError(f"accuracy={accuracy!r}: need a number from 0 to 1")
            metadata["accuracy"] = float(accuracy)
        if isinstance(classes, str):
            raise ValueError(f"classes={classes!r}: need a list of names")
        header = Header(
            config,
            None if encoding is None else find_encoding(encoding),
            None if classes is None else tuple(classes),
            metadata,
        )
        arrays = {name: _stored(name, params[name], dtype) for name in config.parameter_shapes}
        data = header.to_bytes(arrays)
        with replacing(path, "wb") as file:
            file.write(data)
    else:
        raise ValueError(f"{path}: need a name that ends in .safetensors or .bin")


def _stored(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    largest = np.abs(array).max()
    if largest > np.finfo(dtype).max:
        raise ValueError(f"{name} holds {largest:g} in size: float16 ends at {np.finfo(dtype).max:g}; store float32")
    return np.ascontiguousarray(array, dtype)


def load(path: Path, config: Network | None = None) -> Params:
    """Read weights.

    Names, shapes and dtypes are compared before any array is read. What `save` wrote as .safetensors has a digest of
    all that it says and holds, and a PyTorch checkpoint has checksums: damage is refused. A params.bin, and a
    .safetensors file of another program or of format 1, have none: there only values that are not finite show.

    Args:
        path: ends in `.safetensors`; in `.bin` (the original program's params.bin); or in `.pt` or `.pth`, a PyTorch
            checkpoint (of PyTorch 1.6 or later) where PyTorch is installed: a state_dict, or a dict that holds one
            under state_dict, model_state_dict, model or params. float16, bfloat16 and float64 become float32. What
            wrappers put before all names, as `module.` or `_orig_mod.`, is left out.
        config: the sizes; SMALL where the file does not say and None is given. A .safetensors file that `save` wrote
            says it, and another one needs it.

    Returns:
        Params; its encoding, classes and metadata come from a .safetensors file that `save` wrote.

    Raises:
        ValueError: the file is truncated, damaged or foreign, a name is missing, extra, misshapen or not finite, or
            the file's config is another than the given one. Names the file, and what is wrong.
        OSError: the file cannot be read.
    """
    readers = {".safetensors": read_safetensors, ".bin": read_bin, ".pt": read_torch, ".pth": read_torch}
    suffix = _suffix(path)
    if suffix not in readers:
        raise ValueError(f"{path}: need a name that ends in {', '.join(readers)}")
    try:
        values, header = readers[suffix](path, config)
        params = Params(values, header.config, header.encoding, header.classes, header.metadata)
        check(params, params.config)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return params


def _suffix(path: Path) -> str:
    return os.path.splitext(os.fspath(path))[1].lower()
