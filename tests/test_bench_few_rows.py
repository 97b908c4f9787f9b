"""bench/few_rows.py: which rows settings are chosen on and tested with, what is measured, and the table of it."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs PyTorch")

BENCH = Path(__file__).parent.parent / "bench"
import few_rows  # noqa: E402
import text_sets  # noqa: E402
from report import few_rows as block  # noqa: E402

ROWS = [(str(n % 4), f"text {n} of class {n % 4}") for n in range(400)]


def test_halves_share_no_row_and_are_the_same_each_time():
    chosen, tested = text_sets.halves(ROWS)
    assert sorted(chosen + tested) == sorted(ROWS)
    assert 120 < len(chosen) < 280
    assert text_sets.halves(ROWS[:200])[0] == [row for row in chosen if row in ROWS[:200]]


def test_what_was_seen_is_learned_from_and_not_tested_with():
    seen = {text for _, text in ROWS[:200]}
    learned, tested = text_sets.drawn(ROWS, 80, 100, 3, seen=seen)
    assert len(learned) == 80
    assert tested
    assert not seen & {text for _, text in tested}
    assert seen & {text for _, text in learned}
    assert not set(learned) & set(tested)
    with pytest.raises(ValueError, match="no class has its share of 4000 rows"):
        text_sets.drawn(ROWS, 4000, 10, 0)


def test_nine_to_one():
    learned, tested = text_sets.drawn([("a", f"a{n}") for n in range(300)] + ROWS, 100, 100, 0, rare=True)
    assert sorted([sum(label == "a" for label, _ in part) for part in (learned, tested)]) == [90, 90]


def test_numbers_in_words():
    said = {
        0: "zero",
        19: "nineteen",
        42: "forty two",
        300: "three hundred",
        12_305: "twelve thousand three hundred five",
    }
    assert {number: text_sets.in_words(number) for number in said} == said
    labels, texts = zip(*text_sets.digits()[:50], strict=True)
    assert set(labels) <= set("0123456789")
    assert len(set(texts)) == 50


def test_each_case_is_drawn_as_often_as_the_page_says():
    found = few_rows.cases(["a", "b"], [50, 2000], 3)
    assert sorted(found) == sorted(
        [(name, 50, False, seed) for name in "ab" for seed in range(3)]
        + [(name, 200, True, 0) for name in "ab"]
        + [(name, 2000, False, 0) for name in "ab"]
    )


def test_a_drawing_is_measured():
    rows = [(word, f"the {word} of {n}") for n in range(40) for word in ("goal", "bank")]
    options = argparse.Namespace(tested=20, preset="laptop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(text_sets.SETS, "mine", (lambda: rows, "forward", "mine"))
        run = few_rows.measure(rows, set(), ("mine", 40, False, 0), options)
    assert (run["set"], run["asked"], run["rows"], run["tested"], run["classes"]) == ("mine", 40, 40, 20, 2)
    assert run["charcnn"]["accuracy"] == run["linear"]["accuracy"] == 1.0


def test_the_table_pairs_drawings_and_leaves_out_what_was_not_measured(tmp_path, monkeypatch):
    def run(name, asked, seed, right):
        part = {"accuracy": right, "balanced_accuracy": right}
        own = {"set": name, "asked": asked, "rare": False, "seed": seed, "tested": 100, "cpu_seconds": 2.0}
        return own | {"charcnn": part, "linear": {"accuracy": 0.5, "balanced_accuracy": 0.5}}

    raw = json.loads(block.FILE.read_text())
    raw |= {
        "runs": [run("digits", 50, 0, 0.6), run("digits", 50, 1, 0.8), run("news", 200, 0, 0.9)],
        "before": [run("digits", 50, 0, 0.4), run("digits", 50, 1, 0.5)],
    }
    file = tmp_path / "few.json"
    file.write_text(json.dumps(raw))
    monkeypatch.setattr(block, "FILE", file)
    text = block.few_rows(tmp_path / "page.md")
    assert "| numbers in words: the last digit | 70.0 / 45.0 / 50.0 |  |" in text
    assert "| news in 4 topics (AG News) |  | 90.0 / – / 50.0 |" in text
    assert "the mean of 1 to 2 drawings, each tested on 100 other rows. " in text
    assert "The 95 % interval of charcnn's is at most ± 6.4 points. " in text
    raw["runs"].append(run("other", 50, 0, 0.1))
    file.write_text(json.dumps(raw))
    with pytest.raises(block.ReportError, match="unknown sets other"):
        block.few_rows(tmp_path / "page.md")


def test_a_set_that_cannot_be_made_is_left_out():
    command = [sys.executable, str(BENCH / "few_rows.py"), "--sets", "news", "--rows", "50"]
    result = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert result.stderr.startswith("news: left out: ")
