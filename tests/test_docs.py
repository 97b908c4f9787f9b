"""README.md and docs/: generated parts up to date, links that resolve, examples that run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import cases
import pytest
import report

from charcnn import catalog
from charcnn.gpu import device

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*report.documents(), ROOT / "bench" / "README.md", ROOT / "CHANGELOG.md"]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run_report(root, *arguments):
    script = root / "bench" / "report.py"
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, cwd=root, check=False)


def test_generated_blocks_are_up_to_date():
    done = run_report(ROOT, "--check")
    assert done.returncode == 0, done.stderr


def test_a_stale_block_is_told_and_mended(tmp_path):
    shutil.copytree(ROOT / "charcnn", tmp_path / "charcnn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "bench", tmp_path / "bench", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    readme = tmp_path / "README.md"
    original = (ROOT / "README.md").read_text()
    readme.write_text(original.replace("727.20", "900.00"))
    done = run_report(tmp_path, "--check")
    assert done.returncode == 1
    assert done.stderr == "out of date: README.md; run python bench/report.py\n"
    assert run_report(tmp_path).returncode == 0
    assert readme.read_text() == original


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- speed:begin -->\n<!-- speed:end -->", "no block is called speed"),
        ("<!-- levels:begin -->\n", "1 blocks begin, and 0 of them end"),
        ("<!-- code:begin charcnn/config.py Nothing -->\n<!-- code:end -->", "charcnn/config.py has no Nothing"),
    ],
)
def test_a_wrong_block_is_an_error(tmp_path, text, message):
    document = tmp_path / "page.md"
    document.write_text(text)
    with pytest.raises(report.ReportError, match=re.escape(message)):
        report.filled(document)


def test_every_level_has_its_section_in_order():
    names = [heading.split(":")[0] for heading in report.headings((ROOT / "docs" / "history.md").read_text())]
    assert [name for name in names if re.fullmatch(r"l\d+", name)] == [level.name for level in catalog.LEVELS]


def test_every_level_shows_its_cost():
    blocks = [arguments for _, kind, arguments, _ in report.BLOCK.findall((ROOT / "docs/history.md").read_text())]
    assert {level.name for level in catalog.LEVELS} <= set(blocks)


def test_every_operator_is_benchmarked():
    assert set(cases.LAYERS) == {operator.name for operator in catalog.OPERATORS}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(document):
    for target in LINK.findall(document.read_text()):
        if re.match(r"https?://", target):
            continue
        path, _, fragment = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.is_relative_to(ROOT), target
        assert file.exists(), target
        if fragment:
            assert fragment in [report.anchor(heading) for heading in report.headings(file.read_text())], target


@pytest.mark.parametrize("number", range(len(PYTHON.findall((ROOT / "README.md").read_text()))))
def test_readme_example_runs(number):
    example = PYTHON.findall((ROOT / "README.md").read_text())[number]
    if "torch" in example:
        torch = pytest.importorskip("torch", reason="the example needs PyTorch")
        if device.SIMULATED or not torch.cuda.is_available():
            pytest.skip("the example needs a GPU")
    exec(compile(example, f"README.md, example {number + 1}", "exec"), {})
