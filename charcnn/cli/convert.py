"""Write a model in another file format.

It reads .safetensors, PyTorch checkpoints (.pt, .pth) and the original program's params.bin, and writes these and ONNX.
Each output is read back: weights must have the same bits, and an ONNX graph must give the network's logits in ONNX
Runtime.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from charcnn.cli import DONE
from charcnn.host.install import pip_install
from charcnn.host.terminal import printable

if TYPE_CHECKING:
    from charcnn.files import Path
    from charcnn.model.params import Params

EPILOG = """examples:
  charcnn convert params.bin model.safetensors --encoding forward
  charcnn convert my.pt my.safetensors --config '{"classes": 14}'
  charcnn convert model.safetensors model.onnx       takes texts as bytes (docs/onnx.md); needs the extra onnx
  charcnn convert model.safetensors model.pt         needs the extra torch

exit status: 0 done; 1 failed while working; 2 unusable options, files or machine"""

WRITABLE = (".safetensors", ".bin", ".pt", ".pth", ".onnx")

CHECKED = 16
"""Texts of the sample whose logits are compared; random ids where the model does not say how to encode them."""

TOLERANCE = 1e-5
"""Largest ||logits - ref|| / ||ref||; of the models that ship 2e-7."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """INPUT, OUTPUT and what the input does not say."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("input", metavar="INPUT", help=".safetensors, .pt, .pth or .bin")
    add("output", metavar="OUTPUT", help=f"{', '.join(WRITABLE[:-1])} or {WRITABLE[-1]}")
    add("--encoding", metavar="NAME", help="crepe or forward, if INPUT does not say")
    add("--classes", metavar="A,B,…", help="class names, if INPUT does not say")
    add("--config", metavar="JSON", help="sizes that differ from the paper's small network, if INPUT does not say")
    add("--force", action="store_true", help="replace an existing OUTPUT")


def run(options: argparse.Namespace) -> int:
    """Convert; the exit status."""
    from charcnn.config import Config
    from charcnn.files import check_paths, placing
    from charcnn.model import shipped
    from charcnn.text import encodings
    from charcnn.text.names import check_classes

    suffix = os.path.splitext(options.output)[1].lower()
    if suffix not in WRITABLE:
        raise ValueError(f"{options.output}: need a name that ends in {', '.join(WRITABLE)}")
    check_paths({"INPUT": options.input}, {"OUTPUT": options.output}, force=options.force)
    config = None
    if options.config is not None:
        try:
            config = Config(**json.loads(options.config))
        except (TypeError, ValueError) as error:
            raise ValueError(f"--config {options.config}: {error}") from error
    model = shipped.load(options.input, config)
    if options.encoding is not None:
        model.encoding = encodings.find_encoding(options.encoding)
    if options.classes is not None:
        model.classes = tuple(name.strip() for name in options.classes.split(","))
        check_classes(model.classes, model.config.classes)
    onnx = suffix == ".onnx"
    with placing(options.output, force=options.force) as path:
        checked = _write_onnx(path, model) if onnx else _write_weights(path, suffix, model)
    print(f"{printable(options.output)}: {model.config.parameters:,} parameters, {checked}")
    return DONE


def _write_weights(path: Path, suffix: str, model: Params) -> str:
    import numpy as np

    from charcnn.files import replacing
    from charcnn.model import params
    from charcnn.model.model_files import to_torch

    if suffix in (".pt", ".pth"):
        torch = _torch()
        with replacing(path, "wb") as file:
            file.write(to_torch({name: torch.from_numpy(value) for name, value in model.items()}))
    else:
        params.save(path, model if suffix == ".safetensors" else dict(model), model.config)
    again = params.load(path, model.config)
    wrong = [name for name, value in model.items() if not np.array_equal(value, again[name])]
    if wrong:
        raise OSError(5, f"was written, and read back otherwise: {', '.join(wrong)}", path)
    return "read back, the same bits"


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ValueError(f"a PyTorch checkpoint needs PyTorch: {pip_install('torch')}") from error
    return torch


def _write_onnx(path: Path, model: Params) -> str:
    try:
        import onnxruntime

        from charcnn.model import onnx_graph
    except ImportError as error:
        raise ValueError(f"an ONNX file needs onnx and onnxruntime: {pip_install('onnx')}") from error
    import numpy as np

    from charcnn.files import replacing
    from charcnn.model import network
    from charcnn.text import encodings
    from charcnn.text.texts import sample

    says = {
        "encoding": "" if model.encoding is None else json.dumps(model.encoding.to_dict(), allow_nan=False),
        "classes": "" if model.classes is None else json.dumps(model.classes, allow_nan=False),
        "multi_label": "true" if model.config.multi_label else "",
    }
    length, blank = model.config.length, model.config.alphabet
    encoding = model.encoding if model.encoding and model.encoding.blank == blank else None
    if encoding:
        texts = sample(encoding).texts[:CHECKED]
        ids = encodings.encode(texts, encoding, length)
        given = {"text": np.array(texts).view(np.uint8).reshape(len(texts), -1)}
    else:
        ids = np.random.default_rng(0).integers(0, blank + 1, (CHECKED, length), np.uint8)
        ids[:, length // 4 :] = blank  # as texts are: most of it blank
        given = {"ids": ids}
    metadata = {name: value for name, value in says.items() if value}
    graph = onnx_graph.graph(model, model.config, None, "gather", metadata, encoding, exact=True)
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    logits, wanted = session.run(None, given)[0], network.forward(ids, model, model.config)
    if not (np.isfinite(wanted).all() and np.isfinite(logits).all()):
        raise ValueError("the network's logits are not finite: its weights are too large")
    size = float(np.linalg.norm(wanted)) or 1.0  # weights may be zeros
    distance = float(np.linalg.norm(logits - wanted)) / size
    if not distance <= TOLERANCE:
        raise ValueError(f"ONNX Runtime's logits differ by {distance:.1e} of their size: need {TOLERANCE:.0e}")
    with replacing(path, "wb") as file:
        file.write(graph)
    return f"takes {next(iter(given))}, ONNX Runtime's logits within {distance:.1e} of the reference"
