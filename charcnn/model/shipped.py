"""The models that ship with the package, by name."""

from __future__ import annotations

import os
from importlib import resources

from charcnn.config import Config
from charcnn.files import Path
from charcnn.model import params

FOLDER = "weights"

FILES = {
    "fast": "ag_news_fast.safetensors",
    "accurate": "ag_news.safetensors",
    "sparse": "ag_news_sparse.safetensors",
}
"""All label news in four classes: model/weights/README.md has their cards. The first one is the default, and two
of each four weights of the last one are 0 (`charcnn.model.sparsity`)."""

DEFAULT = next(iter(FILES))


def load(name: Path | None = None, config: Config | None = None) -> params.Params:
    """A model that ships, or one of a file.

    Args:
        name: a key of FILES, or a path as of `charcnn.params.load`; None for DEFAULT.
        config: the sizes, of a file that does not say them.

    Raises:
        OSError: the file cannot be read.
        ValueError: no model ships under this name, or the file is damaged or foreign, as of `charcnn.params.load`.
    """
    name = DEFAULT if name is None else name
    if name not in FILES:
        if not os.path.splitext(name)[1]:
            raise ValueError(f"{os.fspath(name)}: need a file, or a model that ships: {', '.join(FILES)}")
        return params.load(name, config)
    with resources.as_file(resources.files("charcnn.model") / FOLDER / FILES[str(name)]) as path:
        return params.load(path, config)
