"""The models that ship with the package, by name."""

from __future__ import annotations

import os
from importlib import resources

from charcnn.files import Path
from charcnn.model import params

FOLDER, SUFFIX = "weights", ".safetensors"


def names() -> list[str]:
    """Of all that ship."""
    folder = resources.files("charcnn.model") / FOLDER
    return sorted(file.name.removesuffix(SUFFIX) for file in folder.iterdir() if file.name.endswith(SUFFIX))


def load(name: Path) -> params.Params:
    """A model that ships, or one of a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: no model ships under this name, or the file is damaged or foreign, as of `charcnn.params.load`.
    """
    if name not in names():
        if not os.path.splitext(name)[1]:
            raise ValueError(f"{os.fspath(name)}: need a file, or a model that ships: {', '.join(names())}")
        return params.load(name)
    with resources.as_file(resources.files("charcnn.model") / FOLDER / f"{name}{SUFFIX}") as path:
        return params.load(path)
