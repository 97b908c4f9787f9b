"""Named weights: initialise, check, save and load."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from charcnn.config import SMALL, Config
from charcnn.files import Path, replacing
from charcnn.text import Encoding, find_encoding

FORMAT = 1
"""Version of what a .safetensors file's metadata holds."""

_KEY = "charcnn"  # one key with one JSON value: safetensors writes several in random order
_NESTED = ("state_dict", "model", "params")


class Params(dict[str, np.ndarray]):
    """The network's weights: name -> float32 array, as in `Config.parameter_shapes`.

    Args:
        values: the arrays.
        config: the sizes that they belong to.
        encoding: the one that they were trained with, or None where it is not known.
        classes: the classes' names, or None.
        metadata: whatever else their file says: name -> JSON value.
    """

    def __init__(
        self,
        values: Mapping[str, np.ndarray],
        config: Config,
        encoding: Encoding | None = None,
        classes: tuple[str, ...] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(values)
        self.config = config
        self.encoding = encoding
        self.classes = classes
        self.metadata = metadata or {}


def init(config: Config, seed: int = 0) -> Params:
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
    for name, shape in config.parameter_shapes.items():
        centre, spread = 0.0, 0.1
        if name.startswith("norm") and name.endswith(".weight"):
            centre, spread = 1.0, 0.25
        elif name.endswith(".weight"):
            variance = 1 / shape[2] if name == "conv1.weight" else 2 / math.prod(shape[1:])
            spread = math.sqrt(3 * variance)
        uniform = rng.random(shape, np.float32)  # its bits are exact; a normal's depend on the C library's logarithm
        params[name] = np.float32(2 * spread) * uniform + np.float32(centre - spread)
    return params


def check(params: Mapping[str, np.ndarray], config: Config) -> None:
    """Raise ValueError unless the arrays are just those that the config names: shape, float32, all finite."""
    shapes = config.parameter_shapes
    for what, names in (("missing", shapes.keys() - params.keys()), ("not of this network", params.keys() - shapes)):
        if names:
            raise ValueError(f"{_listed(names)} {'is' if len(names) == 1 else 'are'} {what}")
    for name, shape in shapes.items():
        array = params[name]
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is a {type(array).__name__}: need a float32 NumPy array")
        if array.dtype != np.float32:
            raise ValueError(f"{name} has dtype {array.dtype}: need float32")
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}: need {shape}")
        finite = np.isfinite(array)
        if not finite.all():
            index = tuple(int(i) for i in np.unravel_index(np.argmin(finite), shape))
            raise ValueError(f"{name} holds {array[index]} at {list(index)}: need finite values")


def digest(params: Mapping[str, np.ndarray]) -> str:
    """16 hexadecimal digits that tell these weights from others."""
    found = hashlib.sha256()
    for name in sorted(params):
        found.update(name.encode())
        found.update(np.ascontiguousarray(params[name]).data)
    return found.hexdigest()[:16]


def check_classes(names: object, count: int) -> None:
    """Raise ValueError unless these are names for so many classes: a tuple of str, none empty, no two the same."""
    if not isinstance(names, tuple) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise ValueError(f"classes={names!r}: need {count} names")
    if "" in names:  # which stands for no label, in files
        raise ValueError(f"classes={names!r} holds an empty name: need some characters")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"classes={names!r} holds {twice!r} twice: need names that differ")


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
        classes: the classes' names, as many as config.classes, no two the same.
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
            raise ValueError(f"{path}: a .bin file keeps weights alone, in float32; save more as .safetensors")
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
        header = _Header(
            config,
            None if encoding is None else find_encoding(encoding),
            None if classes is None else tuple(classes),
            metadata,
        )
        arrays = {name: _stored(name, params[name], dtype) for name in config.parameter_shapes}
        with replacing(path, "wb") as file:
            file.write(safetensors.numpy.save(arrays, {_KEY: header.to_json()}))
    else:
        raise ValueError(f"{path}: need a name that ends in .safetensors or .bin")


def _stored(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    largest = np.abs(array).max()
    if largest > np.finfo(dtype).max:
        raise ValueError(f"{name} holds {largest:g} in size: float16 ends at {np.finfo(dtype).max:g}, store float32")
    return np.ascontiguousarray(array, dtype)


def load(path: Path, config: Config | None = None) -> Params:
    """Read weights.

    Args:
        path: ends in `.safetensors`; in `.bin` (the original program's params.bin); or in `.pt` or `.pth`, a PyTorch
            checkpoint where PyTorch is installed: a state_dict, or a dict that holds one under state_dict, model or
            params. float16 and float64 become float32.
        config: the sizes; SMALL where the file does not say and None is given. A .safetensors file that `save` wrote
            says it, and another one needs it.

    Returns:
        Params; its encoding, classes and metadata come from a .safetensors file that `save` wrote.

    Raises:
        ValueError: the file is truncated, damaged or foreign, a name is missing, extra, misshapen or not finite, or
            the file's config is another than the given one. Names the file, and what is wrong.
        OSError: the file cannot be read.
    """
    readers = {".safetensors": _load_safetensors, ".bin": _load_bin, ".pt": _load_torch, ".pth": _load_torch}
    suffix = _suffix(path)
    if suffix not in readers:
        raise ValueError(f"{path}: need a name that ends in {', '.join(readers)}")
    try:
        params = readers[suffix](path, config)
        check(params, params.config)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return params


@dataclass(frozen=True)
class _Header:
    """What a .safetensors file says beside its arrays."""

    config: Config
    encoding: Encoding | None
    classes: tuple[str, ...] | None
    metadata: dict[str, Any]

    def __post_init__(self) -> None:
        if self.encoding is not None and self.encoding.blank != self.config.alphabet:
            raise ValueError(
                f"encoding {self.encoding.name!r} has {self.encoding.blank} characters: "
                f"need alphabet={self.config.alphabet}, as in the config"
            )
        if self.classes is not None:
            check_classes(self.classes, self.config.classes)
        if not isinstance(self.metadata, dict):
            raise ValueError(f"metadata={self.metadata!r}: need a dict")

    def to_json(self) -> str:
        """The header as written."""
        fields = {
            "format": FORMAT,
            "config": self.config.to_dict(),
            "encoding": None if self.encoding is None else self.encoding.to_dict(),
            "classes": self.classes,
            "metadata": self.metadata,
        }
        try:
            return json.dumps(fields, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"metadata: need JSON values ({error})") from error

    @classmethod
    def from_json(cls, text: str) -> _Header:
        """The header as read; ValueError where it is not one."""
        try:
            fields = json.loads(text)
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']!r}, this version of charcnn reads {FORMAT}")
            encoding, classes = fields["encoding"], fields["classes"]
            return cls(
                Config(**fields["config"]),
                None if encoding is None else Encoding(**encoding),
                tuple(classes) if isinstance(classes, list) else classes,
                fields["metadata"],
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"its metadata is damaged or foreign: {error}") from error


def _load_safetensors(path: Path, config: Config | None) -> Params:
    with open(path, "rb"):  # a missing file or a folder is a plain OSError
        pass
    try:
        with safetensors.safe_open(path, "numpy") as file:
            said = (file.metadata() or {}).get(_KEY)
            if said is not None:
                header = _Header.from_json(said)
                if config is not None and config != header.config:
                    raise ValueError(f"is for {header.config}, not for {config}")
            elif config is not None:
                header = _Header(config, None, None, {})
            else:
                raise ValueError("says no sizes, so charcnn did not write it: pass its config")
            values = {}
            for name in file.keys():  # noqa: SIM118 - not a dict
                dtype = file.get_slice(name).get_dtype()
                if dtype not in ("F16", "F32", "F64"):
                    raise ValueError(f"{name} has dtype {dtype}: need F32, F16 or F64")
                with np.errstate(over="ignore"):  # to an infinity, which check() finds
                    values[name] = file.get_tensor(name).astype(np.float32, copy=False)
    except safetensors.SafetensorError as error:
        raise ValueError(f"is not a whole .safetensors file ({error})") from error
    return Params(values, header.config, header.encoding, header.classes, header.metadata)


def _load_bin(path: Path, config: Config | None) -> Params:
    config = SMALL if config is None else config
    need = 4 * config.parameters
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != need:
            raise ValueError(f"has {size} bytes: need {need}, that is {config.parameters} float32 values for {config}")
        values = np.fromfile(file, "<f4").astype(np.float32, copy=False)
    params, start = Params({}, config), 0
    for name, shape in config.parameter_shapes.items():
        end = start + math.prod(shape)
        params[name] = values[start:end].reshape(shape)
        start = end
    return params


def _load_torch(path: Path, config: Config | None) -> Params:
    with open(path, "rb") as file:
        try:
            import torch
        except ImportError as error:
            raise ValueError("a PyTorch checkpoint needs PyTorch: pip install 'charcnn[torch]'") from error
        try:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # of many types, for what a damaged file makes its unpickler meet
            raise ValueError(f"is not a whole PyTorch checkpoint ({type(error).__name__}: {_line(error)})") from error
    if isinstance(tensors, dict):
        tensors = next((tensors[key] for key in _NESTED if isinstance(tensors.get(key), dict)), tensors)
    if not isinstance(tensors, dict):
        raise ValueError(f"holds a {type(tensors).__name__}: need a state_dict")
    values = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name} is a {type(tensor).__name__}: need a tensor")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} has dtype {tensor.dtype}: need a floating-point one")
        try:
            values[name] = tensor.detach().to(torch.float32).contiguous().numpy()
        except (RuntimeError, TypeError, NotImplementedError) as error:  # sparse, or with no data
            raise ValueError(f"{name} is no plain tensor ({_line(error)})") from error
    return Params(values, SMALL if config is None else config)


def _suffix(path: Path) -> str:
    return os.path.splitext(os.fspath(path))[1].lower()


def _listed(names: Iterable[object]) -> str:
    """Up to four names, and how many more there are."""
    ordered = sorted(map(str, names))
    return ", ".join(ordered[:4]) + (f" and {len(ordered) - 4} more" if len(ordered) > 4 else "")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
