"""ONNX files that take texts as bytes: against the encoder and the reference, and as docs/onnx.md runs them."""

import io
import os
import re
import shutil
import subprocess
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import npm_package

from charcnn.config import TINY
from charcnn.levels import l11
from charcnn.model import network, params, shipped
from charcnn.text import encodings, texts

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from charcnn.model import onnx_graph  # noqa: E402

PAGE = (Path(__file__).parent.parent / "docs" / "onnx.md").read_text()
BLOCK = re.compile(r"^```(python|cpp|javascript)\n(.*?)^```\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLES = {language: [] for language in ("python", "cpp", "javascript")}
for language, code, printed in BLOCK.findall(PAGE):
    EXAMPLES[language].append((code, printed))

FORWARD = encodings.ENCODINGS["forward"]
ENCODINGS = (
    *encodings.ENCODINGS.values(),
    replace(FORWARD, name="the end", keep="tail"),
    replace(FORWARD, name="reversed", reverse=True, lowercase=False),
)
TEXTS = (
    b"", b"Stocks FELL on Monday.", bytes(range(1, 256)), "Übergröße, 東京".encode(), b"a" * 123,
    b"b" * 123 + b"C", b"x\0-",
)  # fmt: skip


def padded(given):
    return np.array(given).view(np.uint8).reshape(len(given), -1)


def session_of(graph):
    return onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.name)
def test_bytes_become_the_encodings_ids(encoding):
    config = replace(TINY, alphabet=encoding.blank)
    model = params.init(config, seed=0)
    model_file = onnx.load_from_string(onnx_graph.graph(model, config, None, "gather", encoding=encoding, exact=True))
    assert {node.domain for node in model_file.graph.node} == {""}
    last = [node.output[0] for node in model_file.graph.node if node.op_type == "Where"][-1]
    model_file.graph.output.append(onnx.helper.make_tensor_value_info(last, onnx.TensorProto.INT32, None))
    session = session_of(model_file.SerializeToString())
    ids = encodings.encode(TEXTS, encoding, config.length)
    wide = np.pad(padded(TEXTS), ((0, 0), (0, 9)))
    for given in (padded(TEXTS), wide):
        logits, found = session.run(None, {"text": given})
        np.testing.assert_array_equal(found, ids)
        np.testing.assert_allclose(logits, network.forward(ids, model, config), atol=1e-5)
    nothing = session.run(None, {"text": np.empty((2, 0), np.uint8)})[1]
    assert (nothing == encoding.blank).all()


def logits_of(model, given):
    """What the file gives for these texts, and their token ids."""
    graph = onnx_graph.graph(model, model.config, None, "gather", encoding=model.encoding, exact=True)
    session = session_of(graph)
    parts = [given[start : start + 100] for start in range(0, len(given), 100)]
    logits = np.concatenate([session.run(None, {"text": padded(part)})[0] for part in parts])
    return logits, encodings.encode(given, model.encoding, model.config.length)


def test_logits_of_the_sample():
    model = shipped.load("fast")
    logits, ids = logits_of(model, texts.sample(model.encoding).texts[::8])
    np.testing.assert_allclose(logits, network.forward(ids, model, model.config), rtol=0, atol=1e-5)


@pytest.mark.skipif(
    "CHARCNN_AG_NEWS" not in os.environ, reason="CHARCNN_AG_NEWS names no folder with AG News' test.csv"
)
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", shipped.FILES)
def test_logits_of_ag_news(name):
    model = shipped.load(name)
    logits, ids = logits_of(
        model, texts.read_texts(Path(os.environ["CHARCNN_AG_NEWS"]) / "test.csv", model.encoding).texts
    )
    np.testing.assert_allclose(logits, l11.build(model, model.config)(ids), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the model.onnx that the page's command writes."""
    from charcnn.__main__ import main

    path = tmp_path_factory.mktemp("onnx")
    assert re.search(r"^charcnn convert fast model\.onnx ", PAGE, re.MULTILINE)
    assert main(["convert", "fast", str(path / "model.onnx")]) == 0
    return path


def test_the_pages_python(folder, monkeypatch):
    monkeypatch.chdir(folder)
    names = {}
    assert len(EXAMPLES["python"]) == 2
    for code, printed in EXAMPLES["python"]:
        with redirect_stdout(io.StringIO()) as said:
            exec(code, names)
        assert said.getvalue() == printed


def ran(words, folder, **options):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=100, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_pages_cpp(folder):
    compiler = shutil.which("c++") or pytest.skip("no C++ compiler")
    include = subprocess.run(
        [compiler, "-E", "-x", "c++", "-"], input="#include <onnxruntime_cxx_api.h>\n", capture_output=True, text=True
    )  # CPATH may name the folder
    if include.returncode:
        pytest.skip("no headers of ONNX Runtime: CPATH names no folder with onnxruntime_cxx_api.h")
    library = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"), None)
    if library is None:
        pytest.skip("onnxruntime's wheel has no shared library to link")
    (folder / "libonnxruntime.so.1").symlink_to(library)
    ((code, printed),) = EXAMPLES["cpp"]
    (folder / "label.cpp").write_text(code)
    ran([compiler, "-std=c++17", "label.cpp", "libonnxruntime.so.1", "-Wl,-rpath,$ORIGIN", "-o", "label"], folder)
    assert ran(["./label"], folder) == printed


@pytest.mark.parametrize("package", ["onnxruntime-web", "onnxruntime-node"])
def test_the_pages_javascript(package, folder):
    node = shutil.which("node") or pytest.skip("no Node.js")
    modules = npm_package(package).parent
    link = folder / "node_modules"
    link.unlink(missing_ok=True)
    link.symlink_to(modules)
    ((code, printed),) = EXAMPLES["javascript"]
    (folder / "label.mjs").write_text(code.replace("onnxruntime-web", package))
    assert ran([node, "label.mjs"], folder) == printed
