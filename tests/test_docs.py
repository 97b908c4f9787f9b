"""README.md, CONTRIBUTING.md and docs/: generated parts up to date, links that resolve, examples that run."""

import ast
import contextlib
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import cases
import numpy as np
import pytest
from report import cards, documents, limits, plot
from report.markdown import anchor, headings
from report.pictures import PICTURES
from report.schema import ReportError, results

from charcnn import catalog, ops
from charcnn.gpu import device

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    *documents.documents(),
    *sorted((ROOT / "docs" / "upstream").glob("*.md")),
    ROOT / "bench" / "README.md",
    ROOT / "CHANGELOG.md",
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
EXAMPLE = re.compile(
    r"^```python\n(?!# charcnn/)(?P<code>.*?)^```\n"
    r"(?:```text\n(?P<printed>.*?)^```\n)?"
    r"(?P<after>.*?)(?=^```python\n(?!# charcnn/)|\Z)",
    re.DOTALL | re.MULTILINE,
)
"""A block of Python, what it prints where the page shows that, and what stands before the next one."""
CALLS = re.compile(r"^(\| computed by \|.*?\n)(?!\|)", re.DOTALL | re.MULTILINE)
"""A table of calls that give one result, a column a result. They follow the block whose names they use."""
EXAMPLES = {
    name: list(EXAMPLE.finditer((ROOT / name).read_text()))
    for name in (
        "README.md",
        "docs/operators.md",
        "docs/attention.md",
        "docs/gemm.md",
        "docs/lecture.md",
        "docs/documents.md",
        "docs/fusion.md",
        "docs/networks.md",
        "docs/primer.md",
    )
}
NUMBERED = [(name, number) for name, found in EXAMPLES.items() for number in range(len(found))]
LIBRARIES = {"ops": "charcnn.ops", "F": "torch.nn.functional", "tf": "tensorflow"}
"""What calls in tables begin with."""
NAMES = [level.name for level in catalog.LEVELS]


def run_report(root, *arguments):
    script = root / "bench" / "report.py"
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, cwd=root, check=False)


def page(name):
    return (ROOT / "docs" / "levels" / f"{name}.md").read_text()


def test_generated_blocks_are_up_to_date():
    done = run_report(ROOT, "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
def test_a_stale_block_is_told_and_mended(tmp_path):
    shutil.copytree(ROOT / "charcnn", tmp_path / "charcnn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "bench", tmp_path / "bench", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "CONTRIBUTING.md", tmp_path)
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "machine_code.json", tmp_path / "tests")
    readme, drawing = tmp_path / "README.md", tmp_path / plot.PLOT.relative_to(ROOT)
    original, drawn = (ROOT / "README.md").read_text(), drawing.read_text()
    stale = original.replace("| [l6](docs/levels/l6.md) |", "| l6 |")
    assert stale != original
    readme.write_text(stale)
    drawing.write_text(drawn.replace("<circle", "<ellipse"))
    done = run_report(tmp_path, "--check")
    assert done.returncode == 1
    assert done.stderr == "out of date: README.md, docs/levels/levels.svg; run python bench/report.py\n"
    assert run_report(tmp_path).returncode == 0
    assert (readme.read_text(), drawing.read_text()) == (original, drawn)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- speed:begin -->\n<!-- speed:end -->", "no block is called speed"),
        ("<!-- levels:begin -->\n", "1 blocks begin, and 0 of them end"),
        ("<!-- code:begin charcnn/config.py Nothing -->\n<!-- code:end -->", "charcnn/config.py has no Nothing"),
        (
            "<!-- code:begin charcnn/config.py Config n -->\n<!-- code:end -->",
            "charcnn/config.py has no loop on n",
        ),
        ("<!-- change:begin l0 -->\n<!-- change:end -->", "l0 builds on no level"),
        ("<!-- change:begin l2 forward -->\n<!-- change:end -->", "forward is the same in l1 and l2"),
        ("<!-- change:begin l5 replica -->\n<!-- change:end -->", "charcnn/levels/l4.py has no build.replica"),
        ("<!-- steps:begin relu relu1 fast -->\n<!-- steps:end -->", "relu has no fast"),
        ("<!-- behind:begin speed -->\n<!-- behind:end -->", "nothing is compared as speed"),
    ],
)
def test_a_wrong_block_is_an_error(tmp_path, text, message):
    document = tmp_path / "page.md"
    document.write_text(text)
    with pytest.raises(ReportError, match=re.escape(message)):
        documents.filled(document)


def test_a_loop_is_shown_alone(tmp_path):
    document = tmp_path / "page.md"
    document.write_text("<!-- code:begin charcnn/ops/conv1d/loops.py _conv1d_loops_kernel t -->\n<!-- code:end -->")
    shown = documents.filled(document).splitlines()
    assert shown[3].startswith("for t in range(")  # less the marker, the fence and the file's name


@pytest.mark.parametrize("name", NAMES)
def test_every_level_has_its_page(name):
    assert next(headings(page(name))).startswith(f"{name}: ")
    found = documents.BLOCK.findall(page(name))
    blocks = [(kind, arguments.partition(" ")[0]) for _, kind, arguments, _ in found]
    wanted = [("step", name), ("change", name), ("cost", name)]
    if limits.predecessor(name) is None:
        wanted.remove(("change", name))
    assert blocks[0] == wanted[0], "the first screen is the numbers'"
    assert "TITAN" not in page(name)  # which the original's document does not name
    assert [block for block in blocks if block in wanted] == wanted


def test_every_level_but_the_first_has_one_before_it():
    assert [name for name in NAMES if limits.predecessor(name) is None] == ["l0"]
    assert {name: limits.predecessor(name).name for name in ("l11", "l12", "l13", "l18")} == {
        "l11": "l2", "l12": "l10", "l13": "l12", "l18": "l11",
    }  # fmt: skip


@pytest.mark.parametrize("form", [plot.PLOT, plot.TALL], ids=lambda path: path.stem)
def test_the_plot_has_every_measured_level(form):
    drawing = ElementTree.fromstring(form.read_text())
    found = [node.text for node in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert set(NAMES) <= set(found)
    measured = [level for level in catalog.LEVELS if (level.name, plot.HOST) in results().levels]
    precisions = dict.fromkeys(level.precision() for level in measured if level.device == "cuda")
    assert set(precisions) <= set(found)
    marks = list(drawing.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(marks) == len(measured) + len(precisions) + 1  # and the legend's
    lines = list(drawing.iter("{http://www.w3.org/2000/svg}polyline"))
    joined = [sum(level.precision() == one and level.device == "cuda" for level in measured) for one in precisions]
    assert [len(line.get("points").split()) for line in lines] == joined, "a line joins levels of one precision"


TALL = [plot.TALL, *(path for path in PICTURES if path.stem.endswith("-tall"))]


@pytest.mark.parametrize("picture", TALL, ids=lambda path: path.stem)
def test_a_picture_has_a_form_for_phones(picture):
    """Which each page names for them; its texts lie within it."""
    drawing = ElementTree.fromstring(picture.read_text())
    width = float(drawing.get("width"))
    assert width == 360
    for node in drawing.iter("{http://www.w3.org/2000/svg}text"):
        wide = (5.4 if "small" in node.get("class", "") else 6.6) * len(node.text)
        begin = float(node.get("x")) - wide * {"start": 0, "middle": 0.5, "end": 1}[node.get("text-anchor")]
        assert -4 <= begin <= width + 4 - wide, node.text
    wide_form = picture.name.replace("-tall", "")
    for page in DOCUMENTS:
        text = page.read_text()
        sources = re.findall(
            rf'<picture><source media="\(max-width: 600px\)" srcset="((?:[^"]*/)?{picture.name})">!\[', text
        )
        assert len(sources) == len(re.findall(rf"\]\((?:[^)]*/)?{wide_form}\)", text)), page
        assert {(page.parent / source).resolve() for source in sources} <= {picture}


@pytest.mark.parametrize("picture", [path for path in PICTURES if path not in TALL], ids=lambda path: path.stem)
def test_a_picture_is_shown_and_told(picture):
    drawing = ElementTree.fromstring(picture.read_text())
    assert drawing.find("{http://www.w3.org/2000/svg}title").text
    left, top, width, height = map(float, drawing.get("viewBox").split())
    for node in drawing.iter():
        for name, low, high in (("x", left, left + width), ("y", top, top + height)):
            assert low <= float(node.get(name, low)) <= high, ElementTree.tostring(node)
    shown = {
        (page.parent / path).resolve(): said
        for page in DOCUMENTS
        for said, path in re.findall(r"!\[(.*?)\]\(([^)]*\.svg)\)", page.read_text(), re.DOTALL)
    }
    assert len(shown[picture].split()) >= 8, "need a text for those who do not see it"


def test_every_picture_in_the_folder_is_drawn():
    assert set((ROOT / "docs" / "pictures").iterdir()) == set(PICTURES)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) - len(catalog.LEVELS) <= 89  # a row a level


def test_the_page_on_gpus_says_what_the_catalogue_has():
    """Each card once, a bound where it was not measured, and no level that its capability does not run."""
    text = (ROOT / "docs" / "gpus.md").read_text()
    rows = {cells[1].strip(): cells for line in text.splitlines() if len(cells := line.split("|")) == 9}
    assert {"T4", "A10G", "L4", "A100", "RTX 3090", "RTX 4090", "RTX 5090", "H100", "H200"} <= set(rows)
    for card in cards.CARDS:
        level, precision = cards.taken_of(cards.ways_of(card.capability))
        assert rows[card.name][5].strip() == f"{level}, {precision}"
        assert ("measured" in rows[card.name][7]) == bool(card.measured)
        assert ("at most" in rows[card.name][6]) == (not card.measured)
    hopper = [row.name for row in catalog.LEVELS if row.hopper]
    assert not set(hopper) & {name for name, _ in cards.ways_of((12, 0))}


def test_every_operator_is_benchmarked():
    assert set(cases.LAYERS) == {operator.name for operator in catalog.OPERATORS}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(document):
    for target in LINK.findall(re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)):
        if re.match(r"https?://", target):
            continue
        path, _, fragment = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.is_relative_to(ROOT), target
        assert file.exists(), target
        if fragment:
            assert fragment in [anchor(heading) for heading in headings(file.read_text())], target


def run_example(name, number):
    """What an example prints, and its names. One that does not begin with imports goes on from those before it."""
    blocks = [found["code"] for found in EXAMPLES[name][: number + 1]]
    first = max((i for i, code in enumerate(blocks) if code.startswith(("import ", "from "))), default=0)
    names, printed = {}, io.StringIO()
    for i in range(first, number + 1):
        with contextlib.redirect_stdout(printed if i == number else io.StringIO()):
            exec(compile(blocks[i], f"{name}, example {i + 1}", "exec"), names)
    return printed.getvalue(), names


@pytest.mark.parametrize(("name", "number"), NUMBERED)
def test_example_runs(name, number):
    found = EXAMPLES[name][number]
    if "torch" in found["code"]:
        torch = pytest.importorskip("torch", reason="the example needs PyTorch")
        if "cuda" in found["code"] and (device.SIMULATED or not torch.cuda.is_available()):
            pytest.skip("the example needs a GPU")
    printed, _ = run_example(name, number)
    if found["printed"] is not None:
        assert printed == found["printed"]


def tables_of(name, number):
    """The tables of calls after an example: of each column its calls, and what they are said to give."""
    for table in CALLS.findall(EXAMPLES[name][number]["after"]):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        assert rows[-1][0] == "result", table
        for cells in list(zip(*rows, strict=True))[1:]:
            yield [cell.strip("`") for cell in cells[2:-1] if cell != "–"], cells[-1].strip("`")


WITH_CALLS = [(name, number) for name, number in NUMBERED if any(tables_of(name, number))]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("name", "number"), WITH_CALLS)
def test_calls_give_what_their_table_says(name, number, library):
    module = pytest.importorskip(LIBRARIES[library], reason=f"{LIBRARIES[library]} is not installed")
    names = {key: value for key, value in run_example(name, number)[1].items() if isinstance(value, np.ndarray)}
    if library == "F":
        torch = pytest.importorskip("torch")
        names = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in names.items()}
    names |= {library: module, "nhwc": lambda x: x.transpose(0, 2, 3, 1), "hwio": lambda w: w.transpose(2, 3, 1, 0)}
    for calls, said in tables_of(name, number):
        expected = np.array(ast.literal_eval(said), np.float64)
        digits = max((len(digits) for digits in re.findall(r"\.(\d+)", said)), default=0)
        rounded = 0.5 * 10.0**-digits if digits > 2 else 0.0  # with two digits or fewer it is exact
        for call in (call for call in calls if call.startswith(f"{library}.")):
            found = np.asarray(eval(call, names)).reshape(expected.shape)
            np.testing.assert_allclose(found, expected, catalog.FLOAT32, rounded, err_msg=call)


@pytest.mark.parametrize(("name", "number"), WITH_CALLS)
def test_tables_of_calls_have_every_technique(name, number):
    """In float32 and as the page calls the operator, but for one that refuses the call; and PyTorch's call beside."""
    operators = {row.function: row.operator for row in catalog.VARIANTS}
    names = run_example(name, number)[1] | {"ops": ops}
    for calls, _ in tables_of(name, number):
        own = [call.removeprefix("ops.").partition("(")[0] for call in calls if call.startswith("ops.")]
        operator = operators[own[0]]
        every = [row.function for row in catalog.VARIANTS if row.operator == operator and not row.precision]
        assert own == [function for function in every if function in own]
        for other in set(every) - set(own):
            with pytest.raises(ValueError, match=f"the technique {other.removeprefix(operator)[1:]} needs"):
                eval(calls[0].replace(own[0], other), names)
        libraries = [call.partition(".")[0] for call in calls[len(own) :]]
        assert libraries in (["F"], ["F", "tf"])


@pytest.mark.parametrize(
    "wrong", ["ops.conv2d_loops(x, w, b) + 1", "F.conv2d(x, w, b) + 1", "ops.conv2d_naive(x, w[:, :, ::-1].copy(), b)"]
)
def test_a_wrong_call_is_seen(monkeypatch, wrong):
    library = wrong.partition(".")[0]
    monkeypatch.setattr(sys.modules[__name__], "tables_of", lambda name, number: [([wrong], "[[37, 47], [67, 77]]")])
    pytest.importorskip(LIBRARIES[library])
    with pytest.raises(AssertionError):
        test_calls_give_what_their_table_says("docs/lecture.md", 0, library)
