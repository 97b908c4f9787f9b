"""charcnn: a character-level CNN in numba.cuda, from plain loops to tensor cores, level by level.

    import charcnn
    classifier = charcnn.Classifier.load()               # news in four classes
    classifier.predict(["a text", "another"])
    ids = classifier.encode(["a text", "another"])       # uint8 (2, 1014), as its model takes them
    own = charcnn.train(texts, labels)                   # a classifier of your own
    y = charcnn.ops.conv1d_relu_naive(x, weight, bias)   # on a GPU

Names load when they are first used: importing charcnn imports neither Numba nor CUDA.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from charcnn.caching.hook import install as _install
from charcnn.gpu import absent, backend
from charcnn.gpu.backend import successor

if TYPE_CHECKING:
    from charcnn import ops
    from charcnn.classify.classifier import Classifier
    from charcnn.classify.train import train
    from charcnn.config import SMALL, TINY, Config
    from charcnn.model import params
    from charcnn.networks.encoder.embedder import Embedder
    from charcnn.text.encodings import encode

__all__ = ["SMALL", "TINY", "Classifier", "Config", "Embedder", "encode", "ops", "params", "train"]

_HOME = {
    "Classifier": "classify.classifier",
    "Config": "config",
    "Embedder": "networks.encoder.embedder",
    "SMALL": "config",
    "TINY": "config",
    "encode": "text.encodings",
    "train": "classify.train",
}
_MODULES = {"ops": "ops", "params": "model.params"}


_install()
(successor if backend.IS_MLIR else absent).install()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return import_module(f"{__name__}.{_MODULES[name]}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
