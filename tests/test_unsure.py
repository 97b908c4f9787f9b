"""Labels that the model is unsure of: below --min-probability, in files, in Python and where labels are compared."""

import csv
import json

import numpy as np
import pytest
from commands import TEXTS, rows

from charcnn.cli import DONE, UNREADABLE, UNUSABLE
from charcnn.text import encodings


@pytest.fixture(scope="module")
def shares(classifier):
    return classifier.predict_proba(TEXTS)


@pytest.fixture(scope="module")
def middle(shares):
    """A probability that half of the texts have."""
    return float(np.median(shares.max(axis=1)))


def written(folder, suffix):
    path = folder / f"in.{suffix}"
    if suffix == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": TEXTS}), path)
    else:
        line = {"csv": '1,"{}"\n', "jsonl": '{{"text": "{}"}}\n', "txt": "{}\n"}[suffix]
        path.write_text("".join(line.format(value) for value in TEXTS))
    return path


def found(path, suffix):
    """Labels and probabilities."""
    if suffix == "parquet":
        from pyarrow import parquet

        table = parquet.read_table(path)
        return table["label"].to_pylist(), table["probability"].to_pylist()
    if suffix == "jsonl":
        values = [json.loads(line) for line in path.read_text().splitlines()]
        return [value["label"] for value in values], [value["probability"] for value in values]
    cells = rows(path, **({"delimiter": "\t"} if suffix == "txt" else {}))
    at = 0 if suffix == "txt" else 2
    return [row[at] for row in cells], [float(row[at + 1]) for row in cells]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt", "parquet"])
def test_rows_that_are_less_probable_get_the_other_label(charcnn, classifier, tmp_path, shares, middle, suffix):
    source, out = written(tmp_path, suffix), tmp_path / f"out.{suffix}"
    words = ("--min-probability", middle, "--unsure-label", 'ask, "me"', "--json", tmp_path / "r.json")
    status, _, err = charcnn("classify", source, "-o", out, *words)
    assert status == DONE
    expected = classifier.predict(TEXTS, min_probability=middle, unsure_label='ask, "me"').tolist()
    unsure = expected.count('ask, "me"')
    assert 0 < unsure < len(TEXTS)
    labels, probabilities = found(out, suffix)
    if suffix == "txt":
        labels = [label.replace('ask "me"', 'ask, "me"') for label in labels]
    assert labels == expected
    np.testing.assert_allclose(probabilities, shares.max(axis=1), atol=1e-4)
    assert f'{unsure} of 160 rows are less probable than {middle:g}, and labelled ask, "me"' in err
    assert json.loads((tmp_path / "r.json").read_text())["unsure"] == unsure


def test_all_probabilities_stay(charcnn, tmp_path, shares):
    source, out = written(tmp_path, "csv"), tmp_path / "out.csv"
    assert charcnn("classify", source, "-o", out, "--min-probability", 1, "--probabilities")[0] == DONE
    assert {row[2] for row in rows(out)} == {"unsure"}
    np.testing.assert_allclose([[float(cell) for cell in row[3:]] for row in rows(out)], shares, atol=1e-4)


def test_a_row_that_cannot_be_read_is_not_unsure(charcnn, tmp_path):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("1,a\n2\n3,c\n")
    status, _, err = charcnn("classify", source, "-o", out, "--min-probability", 1)
    assert status == UNREADABLE
    assert [row[2] for row in rows(out)] == ["unsure", "", "unsure"]
    assert "2 of 3 rows are less probable than 1" in err


def test_nothing_is_below_0(charcnn, tmp_path, classifier):
    source, out = written(tmp_path, "csv"), tmp_path / "out.csv"
    assert charcnn("classify", source, "-o", out, "--min-probability", 0)[0] == DONE
    assert [row[2] for row in rows(out)] == classifier.predict(TEXTS).tolist()
    charcnn("classify", source, "-o", tmp_path / "plain.csv")
    assert out.read_bytes() == (tmp_path / "plain.csv").read_bytes()


def test_a_run_that_is_cut_off_keeps_to_its_probability(charcnn, interrupted, tmp_path, middle):
    source, out = written(tmp_path, "csv"), tmp_path / "out.csv"
    interrupted(2, "classify", source, "-o", out, "--min-probability", middle)
    for other in ((), ("--min-probability", middle / 2), ("--min-probability", middle, "--unsure-label", "none")):
        status, _, err = charcnn("classify", source, "-o", out, *other)
        assert status == UNUSABLE
        assert "is what another run left" in err
    words = ("--min-probability", middle, "--unsure-label", "unsure")
    assert charcnn("classify", source, "-o", out, *words)[0] == DONE
    charcnn("classify", source, "-o", tmp_path / "whole.csv", *words)
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_several_files(charcnn, tmp_path, middle):
    written(tmp_path, "csv")
    written(tmp_path, "txt")
    words = ("--min-probability", middle)
    status, _, err = charcnn("classify", tmp_path / "in.csv", tmp_path / "in.txt", *words)
    assert status == DONE
    labels = found(tmp_path / "in.labelled.csv", "csv")[0]
    assert labels == found(tmp_path / "in.labelled.txt", "txt")[0]
    assert f"{2 * labels.count('unsure')} of 320 rows are less probable" in err


def test_predict(classifier, shares, middle):
    names = classifier.predict(TEXTS, min_probability=middle, unsure_label="a label longer than any class")
    plain = classifier.predict(TEXTS)
    below = shares.max(axis=1) < np.float32(middle)
    assert (names[below] == "a label longer than any class").all()
    assert (names[~below] == plain[~below]).all()
    assert classifier.predict(TEXTS[0], min_probability=1.0) == "unsure"
    assert classifier.predict(TEXTS[0], min_probability=0) == plain[0]
    assert classifier.predict([], min_probability=0.5).shape == (0,)
    (best,) = classifier.predict_proba([TEXTS[3]]).max(axis=1)
    assert classifier.predict(TEXTS[3], min_probability=float(best)) == plain[3], "at least so probable"


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), "0.5", True])
def test_a_probability_that_is_none(classifier, wrong):
    with pytest.raises(ValueError, match=r"min_probability=.*: need a number from 0 to 1"):
        classifier.predict("a", min_probability=wrong)


@pytest.mark.parametrize(
    ("label", "message"),
    [("Sports", "unsure_label='Sports': is a class of the model"), ("", "is empty"), ("a\nb", "control"), (3, "a str")],
)
def test_a_label_that_is_none(classifier, label, message):
    with pytest.raises(ValueError, match=message):
        classifier.predict("a", min_probability=0.5, unsure_label=label)


def test_options_that_are_none(charcnn, tmp_path, capsys):
    source = written(tmp_path, "csv")
    for words, message in (
        (("--min-probability", "0.5", "--unsure-label", "World"), "--unsure-label='World': is a class of the model"),
        (("--unsure-label", "none"), "--unsure-label none: needs --min-probability"),
    ):
        status, _, err = charcnn("classify", source, *words)
        assert status == UNUSABLE
        assert err.startswith(f"charcnn classify: {message}")
        assert err.count("\n") == 1
    for command in ("classify", "evaluate"):
        with pytest.raises(SystemExit) as ended:
            charcnn(command, source, "--min-probability", "1.5")
        assert ended.value.code == UNUSABLE
        assert "1.5: need 0 to 1" in capsys.readouterr().err


def test_evaluate_says_what_is_kept_and_how_right_it_is(charcnn, classifier, tmp_path, shares, middle):
    labels = [encodings.CLASSES[n % 4] for n in range(len(TEXTS))]
    source, report = tmp_path / "in.csv", tmp_path / "r.json"
    with open(source, "w", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *zip(labels, TEXTS, strict=True)])
    status, out, _ = charcnn("evaluate", source, "--min-probability", middle, "--json", report)
    assert status == DONE
    predicted, kept = classifier.predict(TEXTS), shares.max(axis=1) >= np.float32(middle)
    right = predicted == np.array(labels)
    found = json.loads(report.read_text())
    assert found["rows"] == kept.sum() == np.sum(found["confusion"])
    assert found["unsure"] == (~kept).sum()
    assert found["coverage"] == pytest.approx(kept.mean())
    assert found["accuracy"] == pytest.approx(right[kept].mean())
    assert found["accuracy_of_all"] == pytest.approx(right.mean())
    assert out.startswith(f"coverage {kept.mean():.2%}: {kept.sum()} of 160 rows have a probability of ")
    assert f"\naccuracy {right[kept].mean():.2%}" in out
    assert charcnn("evaluate", source, "--min-probability", 0, "--json", report)[0] == DONE
    assert json.loads(report.read_text())["coverage"] == 1
    charcnn("evaluate", source, "--json", report)
    assert "coverage" not in json.loads(report.read_text())
    status, out, err = charcnn("evaluate", source, "--min-probability", 1)
    assert (status, out) == (UNUSABLE, "")
    assert err == f"charcnn evaluate: {source}: none of 160 rows has a probability of 1 or more\n"
