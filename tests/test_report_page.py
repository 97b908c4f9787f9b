"""`charcnn report`: levels are run and checked by their own commands, and the page says what they said."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from conftest import by_turns

from charcnn import catalog
from charcnn.__main__ import main
from charcnn.catalog import measured
from charcnn.charts import measure, page
from charcnn.charts.history import BOTTOM, HEIGHT, history
from charcnn.cli import DONE, FAILED, UNUSABLE
from charcnn.gpu import device

BLOCKS = ("conv_block_1", "conv_block_2", "conv_block_3", "conv_block_4", "conv_block_5", "conv_block_6", "fc_blocks")


def level(name, rate, *, profile=None):
    """A level's report, as its command writes it."""
    row = catalog.level(name)
    stages = dict.fromkeys(BLOCKS, 0.125) if name != "l16" else {"network": 0.5}
    check = {"sigmas": 0.4, "bound": 12.0, "passed": True}
    made = {"title": row.title, "precision": row.precision(), "inputs": 4096, "batch": 256, "stages": stages}
    return {**made, "inputs_per_second": rate, "validation": check, **({"profile": profile} if profile else {})}


KERNELS = [
    {"layer": "conv_block_2", "flop": 1e12, "bytes": 1e9, "microseconds": 2000.0},
    {"layer": "conv_block_1", "flop": None, "bytes": 1e9, "microseconds": 500.0},
]
PROFILE = {"kernels": KERNELS, "peaks": "as measured", "peak_flop_per_second": 5e13, "peak_bytes_per_second": 4e12}


def report(gpu=True):
    """Of a made-up machine."""
    levels = {row.name: {"why": "it needs an NVIDIA GPU"} for row in catalog.LEVELS}
    levels |= {
        "l0": level("l0", 2.5),
        "l2": level("l2", 2.5e-1),
        "l11": level("l11", 1234.0),
        "l1": {"why": "it <failed>"},
    }
    if gpu:
        levels |= {"l12": level("l12", 4e4, profile=PROFILE), "l16": level("l16", 1.2e6)}
    host = {"system": "Linux", "cpu": "A & B", "cores": 4, "gpus": ["A GPU"] * gpu, "driver": None, "mpi": None}
    cpu = {"flop_per_second": 1e11, "bytes_per_second": 1e10}
    host["versions"] = {"numpy": "2"}
    return {"schema": "report", "machine": host, "commit": None, "cpu": cpu, "levels": levels}


class Page(HTMLParser):
    """Its tags in balance, its pictures, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.open, self.images, self.loaded, self.rows, self.text = [], [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, given):
        given = dict(given)
        self.loaded += [value for name, value in given.items() if name in ("href", "src") and "data:" not in value]
        if tag == "img":
            self.images.append(given)
        if tag == "tr":
            self.rows.append([])
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


@pytest.mark.parametrize("gpu", [True, False], ids=["with a GPU", "without"])
def test_the_page_stands_alone(gpu):
    found = Page(page.page(report(gpu)))
    assert found.open == []
    assert found.loaded == []
    assert "script" not in page.page(report(gpu))
    assert len(found.images) == 5 + gpu  # history, stages twice, rooflines
    for image in found.images:
        assert len(image["alt"].split()) >= 8
        drawn = base64.b64decode(image["src"].partition("base64,")[2]).decode()
        assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
        assert "prefers-color-scheme: dark" in drawn
        for place in re.findall(r'c[xy]="([-\d.]+)"', drawn):
            assert 0 <= float(place) <= 900


def test_what_the_page_says():
    found = Page(page.page(report()))
    rows = {row[0]: row for row in found.rows if row}
    shipped = measured.machines()["nvidia-h200"]["levels"]
    assert rows["l0"][3] == "2.5"
    assert rows["l2"][4] == "–"  # l1, which it builds on, failed
    assert (
        rows["l12"][-1]
        == f"{shipped['l12']['inputs_per_second']:,.0f} ({4e4 / shipped['l12']['inputs_per_second']:.0%})"
    )
    assert rows["l16"][3] == "1,200,000"
    assert rows["l1"] == ["l1", "it <failed>"]
    assert "1,200,000 inputs a second by l16, in fp16" in found.text
    assert "4,800,000 times as many as by l2" in found.text
    assert "charcnn on A GPU" in found.text
    assert "A & B, 4 cores" in found.text


def test_no_rate_is_written_over_a_levels_name():
    drawn = history("made up", [("l0", "cpu"), ("l1", "cpu")], {"l0": 1.2, "l1": 0.3}, legend=[("cpu", "here", 84)])
    places = {float(y) for y in re.findall(r'<text class="small value".*? y="([\d.]+)"', drawn)}
    assert len(places) == 2
    assert max(places) < HEIGHT - BOTTOM


def test_a_rate_stands_on_its_points_side_of_a_line():
    """Were it slower, it would stand below the other library's."""
    three, rates, others = [("l0", "cuda"), ("l1", "cuda"), ("l2", "cuda")], {"l0": 3.0, "l1": 6e5}, {"l2": 5.0}
    drawn = history("made up", three, rates, legend=[], peers=[4.8e5] * 3)
    (line,) = re.findall(r'<line class="s2 thick".*? y1="([\d.]+)"', drawn)
    (label,) = re.findall(r'<text class="small value".*? y="([\d.]+)"[^>]*>600 k', drawn)
    assert float(label) < float(line)
    assert drawn.count("not measured") == 1
    assert "not measured" not in history("made up", three, rates, legend=[], others=others)


def test_points_of_kernels_and_blocks():
    """A kernel of 1e12 FLOP in 2 ms, and a block of the network in 8 to the second; gathered ones have none."""
    (point,) = page._kernels("l12", "fp32", PROFILE)
    assert (point.rate, point.use) == (pytest.approx(5e14), pytest.approx(1000))
    blocks = list(page._blocks("l0", level("l0", 2.5), "c0"))
    assert [point.title.split(", ")[1].split(":")[0] for point in blocks] == list(BLOCKS)
    conv2 = next(node for node in page.SMALL.nodes if node.layer.name == "conv2")
    assert blocks[1].rate == pytest.approx(conv2.flops * 4096 / 0.125)
    assert blocks[1].use == pytest.approx(conv2.flops * 256 / conv2.bytes(256))
    assert len(list(page._blocks("l11", level("l11", 1234.0), "c0"))) == len(BLOCKS) - 1


def test_nothing_ran():
    found = report()
    found["levels"] = {name: {"why": "it failed: no"} for name in found["levels"]}
    text = page.page(found)
    assert "No level gave right logits here." in text
    assert Page(text).images == []


@pytest.fixture
def ran(monkeypatch):
    """Commands of levels that were started, in place of the levels; l2 has wrong logits."""
    words = []

    def run(row, inputs, repeat, *more):
        words.append((row.name, inputs, repeat, *more))
        if row.name == "l2":
            return {"why": "it failed: its logits are wrong"}
        return {**level(row.name, 1000.0), "seconds": [inputs / 1000] * repeat}

    monkeypatch.setattr(measure, "_run", run)
    monkeypatch.setattr(measure, "here", lambda: {row.name: "no GPU" * (row.name == "l16") for row in catalog.LEVELS})
    return words


@by_turns
def test_a_first_run_says_how_many_inputs_follow(ran):
    told = []
    found = measure.measure(["l2", "l11", "l12"], 2.0, told.append)
    shipped = measured.machines()["nvidia-h200"]["levels"]
    few, batch, gpu = (shipped[name]["batch"] for name in ("l2", "l11", "l12"))
    assert ran == [
        ("l2", few, 1),
        ("l11", batch, 1), ("l11", 2000 - 2000 % batch, measure.REPEAT),
        ("l12", gpu, 1), ("l12", 2000 - 2000 % gpu, measure.REPEAT, "--profile"),
    ]  # fmt: skip
    assert found["levels"]["l2"] == {"why": "it failed: its logits are wrong"}
    assert found["levels"]["l0"] == {"why": measure.NOT_ASKED}
    assert found["levels"]["l16"] == {"why": "no GPU"}
    assert [line.split()[0] for line in told] == ["l2", "l11", "l12"]
    assert found["cpu"]["flop_per_second"] > 1e8


@by_turns
def test_a_slow_level_runs_once(ran):
    measure.measure(["l0"], 0.0005)
    assert ran == [("l0", 1, 1)]


def test_without_a_gpu_cuda_levels_say_so():
    found = measure.here()
    assert list(found) == [row.name for row in catalog.LEVELS]
    assert found["l0"] == found["l11"] == ""
    if device.SIMULATED:
        assert found["l12"] == "it needs an NVIDIA GPU"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--levels", "l99"], "l99: need one of l0, l1, "),
        (["--levels", "l16"], "l16 does not run here: no GPU"),
        (["-o", "nowhere/a.html"], "--output nowhere/a.html: there is no folder nowhere"),
        (["--json", "nowhere/a.json"], "--json nowhere/a.json: there is no folder nowhere"),
        (["--from", "other.json"], "--from other.json: need what charcnn report --json wrote"),
        (["--from", "damaged.json"], "--from damaged.json: lacks something that charcnn report --json writes"),
        (["--from", "text.json"], "--from text.json: is not JSON "),
        (["--from", "other.json", "--levels", "l0"], "--from: nothing is measured; leave out --levels and --seconds"),
        (["--from", "none.json"], "none.json: No such file or directory"),
    ],
)
def test_what_does_not_fit(words, message, ran, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text('{"schema": "level"}')
    (tmp_path / "damaged.json").write_text('{"schema": "report", "levels": {}}')
    (tmp_path / "text.json").write_text("inputs")
    assert main(["report", *words]) == UNUSABLE
    said = capsys.readouterr().err
    assert said.startswith(f"charcnn report: {message}")
    assert said.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_no_right_level_is_a_failure(ran, tmp_path):
    assert main(["report", "--levels", "l2", "-o", str(tmp_path / "a.html")]) == FAILED
    assert "its logits are wrong" in (tmp_path / "a.html").read_text()


@pytest.mark.exhaustive
def test_from_levels_to_a_page_and_again(tmp_path, capsys):
    """Real runs of the fastest level of any CPU."""
    words = ["report", "--levels", "l11", "--seconds", "0.05", "-o", str(tmp_path / "a.html")]
    assert main([*words, "--json", str(tmp_path / "a.json")]) == DONE
    assert capsys.readouterr().out.splitlines()[0].startswith("l11 ")
    row = json.loads((tmp_path / "a.json").read_text())["levels"]["l11"]
    assert row["validation"]["passed"]
    assert main(["report", "--from", str(tmp_path / "a.json"), "-o", str(tmp_path / "b.html")]) == DONE
    assert (tmp_path / "a.html").read_text() == (tmp_path / "b.html").read_text()
