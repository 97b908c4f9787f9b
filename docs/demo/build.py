"""Put all that the demo needs into a folder: the page, the model `fast` as ONNX, and ONNX Runtime for browsers.

npm install onnxruntime-web
python docs/demo/build.py node_modules/onnxruntime-web build/demo
python -m http.server --directory build/demo
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from charcnn.__main__ import main as charcnn
from charcnn.model import shipped

PAGE = ("index.html", "offline.js")
RUNTIME = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")


def build(runtime: Path, out: Path) -> None:
    """Write the folder.

    Args:
        runtime: npm's package onnxruntime-web.
        out: the folder, made where it is missing.

    Raises:
        OSError: a file of the package is missing, or one cannot be written.
        ValueError: the model could not be converted.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in PAGE:
        shutil.copyfile(Path(__file__).parent / name, out / name)
    for name in RUNTIME:
        shutil.copyfile(runtime / "dist" / name, out / name)
    if charcnn(["convert", "fast", str(out / "model.onnx"), "--force"]):
        raise ValueError("the model could not be converted")
    (out / "classes.json").write_text(json.dumps(shipped.load("fast").classes), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runtime", type=Path, metavar="PACKAGE", help="the folder of npm's package onnxruntime-web")
    parser.add_argument("out", type=Path, metavar="FOLDER", help="where to write")
    options = parser.parse_args()
    build(options.runtime, options.out)
