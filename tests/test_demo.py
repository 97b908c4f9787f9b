"""The demo in docs/demo, as a browser without a window shows it: what is typed, the label, no network."""

import importlib.util
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import browser
import pytest

DEMO = Path(__file__).parent.parent / "docs" / "demo"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    runtime = browser.npm_package("onnxruntime-web")
    spec = importlib.util.spec_from_file_location("build_demo", DEMO / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = tmp_path_factory.mktemp("demo")
    module.build(runtime, path)
    return path


@pytest.fixture
def server(folder):
    made = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.server_close()


@pytest.fixture
def page(tmp_path):
    if browser.find() is None:
        pytest.skip(f"none of {', '.join(browser.NAMES)} is installed")
    made = browser.Page(tmp_path / "profile")
    yield made
    made.close()


def label_of(page, text):
    """The label that the page says once this was typed in place of what was there."""
    page.value("document.getElementById('said').textContent = ''; document.getElementById('text').select()")
    page.call("Input.insertText", text=text)
    page.wait("/ ms$/.test(document.getElementById('said').textContent)")
    return page.value("document.getElementById('said').textContent").partition(",")[0]


@pytest.mark.parametrize("width", [360, 1280])
def test_a_typed_text_gets_its_label_also_without_a_server(width, server, page, tmp_path):
    page.open(f"http://127.0.0.1:{server.server_port}/", width)
    page.wait("!document.getElementById('text').disabled")
    assert label_of(page, "The home team won the cup final in extra time.") == "Sports"
    shares = page.value(
        "[...document.querySelectorAll('li span:last-child')].map((one) => parseFloat(one.textContent))"
    )
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert page.value("document.documentElement.scrollWidth") <= width
    page.value("new Promise((done) => setTimeout(done, 300))")  # until bars have grown
    page.screenshot(Path(os.environ.get("CHARCNN_SCREENSHOTS", tmp_path)) / f"demo-{width}.png")
    page.wait("navigator.serviceWorker.controller || navigator.serviceWorker.ready.then(() => true)")
    server.shutdown()
    server.server_close()
    page.open(f"http://127.0.0.1:{server.server_port}/index.html", width)
    page.wait("!document.getElementById('text').disabled")
    assert label_of(page, "Stocks fell on Monday as oil rose.") == "Business"


def test_the_page_loads_nothing_from_elsewhere():
    for file in DEMO.glob("*.*"):
        if file.suffix in (".html", ".js"):
            assert "//" not in file.read_text().replace("// ", ""), file.name
