"""Readers of model files, which trust nothing: names, shapes and dtypes are held against the sizes before any array is
read, and what a file says of its own content is held against that content.

A .safetensors file of charcnn's has, in its metadata under `charcnn`, one JSON object: the format's version, config,
encoding, classes, metadata, and a SHA-256 of all of these and of the arrays as they are stored. It tells damage; it is
no signature, as whoever writes a file can write its digest. Files of format 1 have none, and are read all the same.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import safetensors
import safetensors.numpy

from charcnn.aliases import Record
from charcnn.config import SMALL, Config
from charcnn.files import Path
from charcnn.host.install import pip_install
from charcnn.layers import Network
from charcnn.model.pickles import check_pickle
from charcnn.text.encodings import Encoding
from charcnn.text.names import check_classes

FORMAT = 2
"""Version of what a .safetensors file's metadata holds: 2 has a digest."""

LARGEST_HEADER = 1 << 24
"""Bytes of what is read of a file before anything in it is checked."""

KEY = "charcnn"  # one key with one JSON value: safetensors writes several in random order
_FIELDS = {"format", "config", "encoding", "classes", "metadata"}
_DIGEST = "sha256"
_NESTED = ("state_dict", "model_state_dict", "model", "params")
_WRAPPED = ("module.", "_orig_mod.", "model.")  # by DataParallel, torch.compile, and modules that hold the network

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Header:
    """What a file says beside its arrays."""

    config: Config
    encoding: Encoding | None = None
    classes: tuple[str, ...] | None = None
    metadata: Record | None = None
    digest: str | None = None
    """What the file's content should give; None where it does not say."""

    def __post_init__(self) -> None:
        if self.encoding is not None and self.encoding.blank != self.config.alphabet:
            raise ValueError(
                f"encoding {self.encoding.name!r} has {self.encoding.blank} characters: "
                f"need alphabet={self.config.alphabet}, as in the config"
            )
        if self.classes is not None:
            check_classes(self.classes, self.config.classes)
        if self.metadata is not None and not isinstance(self.metadata, dict):
            raise ValueError(f"metadata={self.metadata!r}: need a dict")

    def fields(self, version: int) -> Record:
        """All but the digest, as JSON values."""
        return {
            "format": version,
            "config": self.config.to_dict(),
            "encoding": None if self.encoding is None else self.encoding.to_dict(),
            "classes": self.classes,
            "metadata": self.metadata or {},
        }

    def to_bytes(self, arrays: Arrays) -> bytes:
        """A .safetensors file.

        Raises:
            ValueError: metadata are no JSON values, or too many.
        """
        fields = self.fields(FORMAT)
        try:
            fields[_DIGEST] = digest_of(fields, arrays)
            text = json.dumps(fields, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"metadata: need JSON values ({error})") from error
        data = safetensors.numpy.save(arrays, {KEY: text})
        if int.from_bytes(data[:8], "little") > LARGEST_HEADER:
            raise ValueError(f"metadata: need {LARGEST_HEADER:,} bytes at most, as JSON")
        return data

    @classmethod
    def from_json(cls, text: str) -> Header:
        """The header as read; ValueError where it is not one."""
        try:
            fields = json.loads(text, parse_float=_finite, parse_constant=_finite)
            if not isinstance(fields, dict):
                raise ValueError("no object")
            version = fields.get("format")
            if type(version) is not int or not 1 <= version <= FORMAT:  # 1.0 and true are equal to 1
                raise ValueError(f"format {version!r}, this version of charcnn reads 1 to {FORMAT}")
            need = _FIELDS if version == 1 else _FIELDS | {_DIGEST}
            if fields.keys() != need:
                raise ValueError(f"its fields are {listed(fields)}: need {listed(need)}")
            encoding, classes, digest = fields["encoding"], fields["classes"], fields.get(_DIGEST)
            if version > 1 and not isinstance(digest, str):
                raise ValueError(f"{_DIGEST} is a {type(digest).__name__}: need a str")
            if fields["metadata"] is None:
                raise ValueError("metadata=None: need a dict")
            header = cls(
                Config(**fields["config"]),
                None if encoding is None else Encoding(**encoding),
                tuple(classes) if isinstance(classes, list) else classes,
                fields["metadata"],
                digest,
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"its metadata is damaged or foreign: {error}") from error
        return header


def digest_of(fields: Mapping[str, Any], arrays: Arrays) -> str:
    """SHA-256, hexadecimal, of a header's fields and the arrays in their order: name, dtype, shape and bytes."""
    found = hashlib.sha256(json.dumps(fields, sort_keys=True, allow_nan=False).encode())
    for name, array in arrays.items():
        found.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def check_shapes(shapes: Mapping[Any, tuple[int, ...]], config: Network) -> None:
    """Raise ValueError unless these are just the names that the config has, with its shapes."""
    need = config.parameter_shapes
    missing, other = need.keys() - shapes.keys(), shapes.keys() - need.keys()
    if missing or other:
        differ = {"missing": missing, "not of this network": other} if other else {"missing": missing, "there": shapes}
        raise ValueError(
            "; ".join(
                f"{listed(names)} {'is' if len(names) == 1 else 'are'} {what}"
                for what, names in differ.items()
                if names
            )
        )
    for name, shape in need.items():
        if shapes[name] != shape:
            raise ValueError(f"{name} has shape {shapes[name]}: need {shape}")


def bare(names: Iterable[Any]) -> dict[Any, Any]:
    """Each name without what wrappers put before all of them -> the name as it is."""
    found = {name: name for name in names}
    while found:
        put = next((put for put in _WRAPPED if all(isinstance(n, str) and n.startswith(put) for n in found)), None)
        if put is None:
            break
        found = {name.removeprefix(put): name_there for name, name_there in found.items()}
    return found


def listed(names: Iterable[object]) -> str:
    """Up to four names, each short and printable, and how many more there are."""
    ordered = sorted(map(str, names))
    shown = [name if name.isprintable() and len(name) <= 100 else ascii(name[:100]) for name in ordered[:4]]
    return ", ".join(shown) + (f" and {len(ordered) - 4} more" if len(ordered) > 4 else "")


def read_safetensors(path: Path, config: Any) -> tuple[Arrays, Header]:
    """Arrays as float32, and what the file says; `config` where it says none."""
    with open(path, "rb") as begin:  # a missing file or a folder is a plain OSError
        size = int.from_bytes(begin.read(8), "little")
    if size > LARGEST_HEADER:
        raise ValueError(
            f"is not a whole .safetensors file, or has a header of {size:,} bytes: {LARGEST_HEADER:,} at most"
        )
    try:
        with safetensors.safe_open(path, "numpy") as file:
            header = _header(file.metadata() or {}, config)
            shapes, narrow = dict[str, tuple[int, ...]](), set[str]()
            names = header.config.own(bare(file.keys()))
            for name, there in names.items():
                part = file.get_slice(there)
                shapes[name] = tuple(part.get_shape())
                if part.get_dtype() not in ("F16", "BF16", "F32", "F64"):
                    raise ValueError(f"{listed([there])} has dtype {part.get_dtype()}: need F16, BF16, F32 or F64")
                if part.get_dtype() == "BF16":
                    narrow.add(name)
            check_shapes(shapes, header.config)
            stored = {
                name: _bfloat16(path, size, names[name], shapes[name])
                if name in narrow
                else file.get_tensor(names[name])
                for name in header.config.parameter_shapes
            }
    except safetensors.SafetensorError as error:
        raise ValueError(f"is not a whole .safetensors file ({line(error)})") from error
    if header.digest is not None and header.digest != digest_of(header.fields(FORMAT), stored):
        raise ValueError("is damaged: its content does not match its digest")
    with np.errstate(over="ignore"):  # to an infinity, which params.check finds
        return {name: stored.pop(name).astype(np.float32, copy=False) for name in list(stored)}, header


def _bfloat16(path: Path, header: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """What NumPy has no dtype for, and safetensors no array: float32's upper half."""
    with open(path, "rb") as file:
        file.seek(8)
        begin = json.loads(file.read(header))[name]["data_offsets"][0]
        file.seek(8 + header + begin)
        bits = np.fromfile(file, "<u2", math.prod(shape))
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(shape)


def _header(metadata: dict[str, str], config: Any) -> Header:
    if KEY in metadata:
        header = Header.from_json(metadata[KEY])
        if config is not None and config != header.config:
            raise ValueError(f"is for {header.config}, not for {config}")
        return header
    if any(f'"{_DIGEST}"' in value and '"config"' in value for value in metadata.values()):
        raise ValueError(f"its metadata is damaged or foreign: need it under {KEY!r}")
    if config is None:
        raise ValueError("does not say its sizes, so charcnn did not write it: pass its config")
    return Header(config)


def read_bin(path: Path, config: Any) -> tuple[Arrays, Header]:
    """The original program's params.bin, whose size is all that tells it from other bytes."""
    config = SMALL if config is None else config
    need = 4 * config.parameters
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != need:
            raise ValueError(f"has {size} bytes: need {need}, that is {config.parameters} float32 values for {config}")
        values = np.fromfile(file, "<f4", config.parameters).astype(np.float32, copy=False)
    if values.size != config.parameters:
        raise ValueError("shrank while it was read")
    arrays, start = {}, 0
    for name, shape in config.parameter_shapes.items():
        end = start + math.prod(shape)
        arrays[name] = values[start:end].reshape(shape)
        start = end
    return arrays, Header(config)


def read_torch(path: Path, config: Any) -> tuple[Arrays, Header]:
    """A PyTorch checkpoint, as torch.save has written them since PyTorch 1.6: a zip file, whose checksums must hold."""
    config = SMALL if config is None else config
    with open(path, "rb") as file:
        try:
            import torch
        except ImportError as error:
            raise ValueError(f"a PyTorch checkpoint needs PyTorch: {pip_install('torch')}") from error
        with _of_a_whole_checkpoint():
            archive = open_archive(file)
            check_sums(archive, storages=False)
            tensors = torch.load(os.fspath(path), map_location="cpu", weights_only=True, mmap=True)
        for _ in range(2):  # what holds a module's may stand in what holds an optimiser's, too
            if isinstance(tensors, dict):
                tensors = next((tensors[key] for key in _NESTED if isinstance(tensors.get(key), dict)), tensors)
        if not isinstance(tensors, dict):
            raise ValueError(f"holds a {type(tensors).__name__}: need a state_dict")
        if not any(isinstance(value, torch.Tensor) for value in tensors.values()):
            held = f"holds {listed(tensors) or 'nothing'}"
            raise ValueError(f"{held}: need a state_dict, or a dict that holds one under {', '.join(_NESTED)}")
        tensors = {name: tensors[there] for name, there in config.own(bare(tensors)).items()}
        shapes = {}
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"{listed([name])} is a {type(tensor).__name__}: need a tensor")
            if not tensor.is_floating_point():
                raise ValueError(f"{listed([name])} has dtype {tensor.dtype}: need a floating-point one")
            shapes[name] = tuple(tensor.shape)
        check_shapes(shapes, config)
        with _of_a_whole_checkpoint():
            check_sums(archive, storages=True)
        arrays = {}
        for name in config.parameter_shapes:
            try:  # copied, as the file may change
                arrays[name] = tensors[name].detach().to(torch.float32, copy=True).contiguous().numpy()
            except (RuntimeError, TypeError, NotImplementedError) as error:  # sparse, or with no data
                raise ValueError(f"{name} is not a plain tensor ({line(error)})") from error
    return arrays, Header(config)


@contextmanager
def _of_a_whole_checkpoint() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of many types, for what a damaged file makes its readers meet
        raise ValueError(f"is not a whole PyTorch checkpoint ({type(error).__name__}: {line(error)})") from error


def to_torch(state: Any) -> memoryview:
    """A PyTorch checkpoint's bytes. `torch.save` to a full disk raises a RuntimeError that does not say so."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer()


def open_archive(file: IO[bytes]) -> zipfile.ZipFile:
    """A checkpoint of PyTorch's as a zip file that holds no more than it has bytes; ValueError where it is none."""
    if not zipfile.is_zipfile(file):
        raise ValueError("not a zip file, which PyTorch writes since 1.6: older files have no checksums, save it again")
    archive = zipfile.ZipFile(file)
    entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("holds compressed entries, which PyTorch does not write")
    if len({entry.filename for entry in entries}) < len(entries):
        raise ValueError("holds two entries of one name")
    if sum(entry.file_size for entry in entries) > os.fstat(file.fileno()).st_size:
        raise ValueError("claims more content than it has bytes")
    return archive


def check_sums(archive: zipfile.ZipFile, *, storages: bool) -> None:
    """Read the entries that hold tensors' values, or all others, and compare their checksums, which PyTorch does not.

    Of the others, pickles must be as `check_pickle` wants them.

    Raises:
        zipfile.BadZipFile: a checksum is another.
        ValueError: another entry is larger than LARGEST_HEADER, or as of `check_pickle`.
    """
    for entry in archive.infolist():
        if ("/data/" in entry.filename) != storages:
            continue
        if not storages and entry.file_size > LARGEST_HEADER:
            raise ValueError(
                f"{listed([entry.filename])} has {entry.file_size:,} bytes: need {LARGEST_HEADER:,} at most"
            )
        with archive.open(entry) as part:
            if entry.filename.endswith(".pkl") and not storages:
                check_pickle(part.read())
            while part.read(1 << 20):
                pass


def line(error: BaseException) -> str:
    """What an error says, short, on one line."""
    text = " ".join(str(error).split())[:200]
    return text if text.isprintable() else ascii(text)
