"""What docs/site/build.py says of a site's links, before and after Zensical has built it."""

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("tomllib")  # as Zensical, from Python 3.11 on

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "site" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "leads",
    [
        '<a href="gone.html">',
        '<a href="#gone">',
        '<a class="x" href="docs/other.html#gone">',
        '<a href="/docs/other.html">',
        '<a href="docs">',
        '<img alt="x" src="gone.svg">',
        '<source media="(max-width: 600px)" srcset="gone.svg">',
        '<link rel="stylesheet" href="gone.css">',
    ],
)
def test_what_leads_nowhere_is_named_with_its_page(leads, build, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "other.html").write_text('<h2 class="x" id="words">')
    (tmp_path / "all.svg").write_text("<svg/>")
    good = (
        '<p id="here"><a href="#here"> <a href="docs/other.html#words"> <a href="https://example.org/gone#x">'
        '<img src="all.svg"><source srcset="all.svg"><code>&lt;a href="gone.html"&gt;</code>'
    )
    (tmp_path / "index.html").write_text(good)
    assert build.broken(tmp_path) == []
    (tmp_path / "index.html").write_text(good + leads)
    (said,) = build.broken(tmp_path)
    assert re.fullmatch(r"index\.html: (\S+) leads nowhere", said)[1] in leads


def test_the_navigation_names_every_page(build, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "BUILD", tmp_path)
    settings, wrong = build.prepare()
    assert wrong == []
    assert settings.parent == tmp_path
    assert (tmp_path / "pages" / "docs" / "levels" / "levels-tall.svg").is_file()  # which only `srcset` names


def test_levels_stand_in_the_order_in_which_people_count(build):
    names = [Path(name).stem for name in build._found("docs/levels/l*.md")]
    assert names == [f"l{number}" for number in range(len(names))]
