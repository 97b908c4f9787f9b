"""Models whose classes do not exclude each other: several labels a text, in memory and in files."""

import csv
import json

import numpy as np
import pytest
from commands import TEXTS, rows

from charcnn import catalog
from charcnn.classify.classifier import Classifier
from charcnn.classify.multi_label import members, sigmoid
from charcnn.cli import DONE, UNREADABLE, UNUSABLE
from charcnn.config import TINY, Config
from charcnn.model import network, params
from charcnn.text import encodings

SEVERAL = Config(**TINY.to_dict(), multi_label=True)
NAMES = ('a, "b"', "é ü", "c;d", "plain")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A model file whose texts have none to four of the classes."""
    model = params.init(SEVERAL, seed=3)
    path = tmp_path_factory.mktemp("several") / "m.safetensors"
    logits = Classifier(params.Params(model, SEVERAL, encodings.ENCODINGS["crepe"], NAMES), device="cpu").engine.logits(
        encodings.encode(TEXTS, "crepe", TINY.length)
    )
    model["fc3.bias"] = model["fc3.bias"] - np.median(logits, axis=0)
    params.save(path, model, SEVERAL, encoding="crepe", classes=NAMES)
    return str(path)


@pytest.fixture(scope="module")
def several(path):
    return Classifier.load(path, device="cpu")


@pytest.fixture(scope="module")
def shares(several):
    return several.predict_proba(TEXTS)


@pytest.fixture(scope="module")
def expected(shares):
    """All labels of each text."""
    found = [[name for name, share in zip(NAMES, own, strict=True) if share >= 0.5] for own in shares]
    assert {0, 1, 2} <= {*map(len, found)}
    return found


# The model.


def test_the_config_says_it_and_files_of_before_say_nothing():
    assert "multi_label" not in TINY.to_dict()
    assert SEVERAL.to_dict()["multi_label"] is True
    assert Config(**SEVERAL.to_dict()) == SEVERAL != TINY
    assert SEVERAL.parameter_shapes == TINY.parameter_shapes
    with pytest.raises(ValueError, match="multi_label=1: need True or False"):
        Config(multi_label=1)


def test_the_file_remembers_it(path, tmp_path):
    assert params.load(path).config == SEVERAL
    again = tmp_path / "again.safetensors"
    params.save(again, params.load(path), SEVERAL)
    assert params.load(again).config.multi_label


def test_an_onnx_file_says_it(charcnn, path, tmp_path):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    assert charcnn("convert", path, tmp_path / "m.onnx", model=None)[0] == DONE
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["multi_label"] == "true"


def test_several_files(charcnn, path, tmp_path, expected):
    for suffix in ("csv", "txt"):
        written(tmp_path, suffix, TEXTS)
    status, _, err = charcnn("classify", tmp_path / "in.csv", tmp_path / "in.txt", model=path)
    assert status == DONE
    assert found(tmp_path / "in.labelled.csv", "csv")[0] == expected == found(tmp_path / "in.labelled.txt", "txt")[0]
    assert f"{2 * expected.count([])} of 320 rows have no label of probability 0.5 or more" in err


def test_sigmoid():
    x = np.array([-1e4, -90, -1, 0, 1, 90, 1e4], np.float32)
    found = sigmoid(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-x.astype(np.float64).clip(-700, 700))), rtol=1e-6, atol=1e-38)


# In memory.


def test_probabilities_are_each_their_own(several, shares, path):
    ids = encodings.encode(TEXTS, "crepe", TINY.length)
    logits = network.forward(ids, params.load(path), SEVERAL)
    np.testing.assert_allclose(shares, 1 / (1 + np.exp(-logits)), atol=2e-6)


def test_predict(several, shares, expected):
    assert several.predict(TEXTS) == expected
    assert several.predict(TEXTS[3]) == expected[3]
    assert several.predict([]) == []
    assert several.predict(TEXTS, min_probability=0) == [list(NAMES)] * len(TEXTS)
    own = float(shares[5, 2])
    assert NAMES[2] in several.predict(TEXTS[5], min_probability=own), "at least so probable"


def test_score_is_the_subset_accuracy(several, expected):
    assert several.score(TEXTS, expected) == 1
    indices = [[NAMES.index(name) for name in own] for own in expected]
    assert several.score(TEXTS, indices) == 1
    wrong = [own if n % 4 else [name for name in NAMES if name not in own] for n, own in enumerate(expected)]
    assert several.score(TEXTS, wrong) == 0.75
    for labels, message in (
        (["plain"] * 160, r"labels\[0\]='plain': need a list of labels"),
        ([["x"]] * 160, r"labels\[0\] holds 'x': need a, "),
        ([[True]] * 160, r"labels\[0\] holds True"),
        ([[4]] * 160, r"labels\[0\] holds 4"),
        ([["plain"]], "labels has 1 lists: need 160"),
    ):
        with pytest.raises(ValueError, match=message):
            several.score(TEXTS, labels)
    with pytest.raises(ValueError, match="there is no score"):
        several.score([], [])
    assert members([{"plain"}, (), np.array([0])], NAMES).tolist() == [[0, 0, 0, 1], [0] * 4, [1, 0, 0, 0]]


def test_what_needs_classes_that_exclude_each_other_is_refused(several, charcnn, path, tmp_path):
    with pytest.raises(ValueError, match="several labels a text, which do not compete"):
        several.predict_topk(TEXTS, 2)
    with pytest.raises(ValueError, match="unsure_label='ask': with several labels a text, one may have none"):
        several.predict(TEXTS, min_probability=0.5, unsure_label="ask")
    source = tmp_path / "in.csv"
    source.write_text("label,text\nplain,a\n")
    for words, message in (
        (("classify", source, "--unsure-label", "ask"), "--unsure-label ask: the model gives several labels a text"),
        (("evaluate", source, "--png", tmp_path / "x.png"), "--png: a model that gives several labels a text has no"),
    ):
        status, _, err = charcnn(*words, model=path)
        assert status == UNUSABLE
        assert err.startswith(f"charcnn {words[0]}: {message}")
    for words in (("classify", source), ("evaluate", source)):
        status, _, err = charcnn(*words, "--label-separator", ";")
        assert status == UNUSABLE
        assert "--label-separator ;: the model gives one label a text" in err
    from charcnn.levels import l11
    from charcnn.levels.runner import level_options

    options = level_options.parser("l11", l11, l11.build, quiet=True).parse_args(["--params", path])
    with pytest.raises(ValueError, match="gives several labels a text, and a level reports one"):
        level_options.prepare(catalog.level("l11"), options)


def test_explain_is_of_a_class_by_itself(several, shares):
    found = several.explain(TEXTS[0], label="plain")
    assert found.probability == pytest.approx(shares[0, 3], abs=1e-6)


# Files.


def written(folder, suffix, texts):
    path = folder / f"in.{suffix}"
    if suffix == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": texts}), path)
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps({"label": 1, "text": text}) + "\n" for text in texts))
    else:
        path.write_text("".join(f"{text}\n" for text in (["text", *texts] if suffix == "csv" else texts)))
    return path


def found(path, suffix, separator="|"):
    """Labels and probabilities."""
    if suffix == "parquet":
        from pyarrow import parquet

        table = parquet.read_table(path)
        return table["label"].to_pylist(), table["probability"].to_pylist()
    if suffix == "jsonl":
        values = [json.loads(line) for line in path.read_text().splitlines()]
        assert [value["label"] for value in values] == [1] * len(values), "its own key stays"
        return [value["predicted label"] for value in values], [value["probability"] for value in values]
    if suffix == "csv":
        cells = [row[1:] for row in rows(path)[1:]]
    else:
        cells = [line.split("\t") for line in path.read_text().splitlines()]
    split = [[cell.split(separator) if cell else [] for cell in row[:2]] for row in cells]
    return [row[0] for row in split], [[float(share) for share in row[1]] for row in split]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt", "parquet"])
def test_every_row_gets_all_its_labels_with_their_probabilities(charcnn, path, tmp_path, shares, suffix):
    least = float(np.quantile(shares, 0.7))
    source, out = written(tmp_path, suffix, TEXTS), tmp_path / f"out.{suffix}"
    words = ("--min-probability", least, "--json", tmp_path / "r.json")
    status, _, err = charcnn("classify", source, "-o", out, *words, model=path)
    assert status == DONE
    labels, probabilities = found(out, suffix)
    chosen = shares >= np.float32(least)
    assert labels == [[NAMES[c] for c in np.flatnonzero(own)] for own in chosen]
    for own, given in zip(
        probabilities, [share[which] for share, which in zip(shares, chosen, strict=True)], strict=True
    ):
        np.testing.assert_allclose(own, given, atol=1e-4)
    none = int((~chosen.any(axis=1)).sum())
    assert 0 < none < len(TEXTS)
    assert f"{none} of 160 rows have no label of probability {least:g} or more" in err
    assert json.loads((tmp_path / "r.json").read_text())["without_label"] == none


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt", "parquet"])
def test_a_column_for_every_probability(charcnn, path, tmp_path, shares, expected, suffix):
    source, out = written(tmp_path, suffix, TEXTS), tmp_path / f"out.{suffix}"
    assert charcnn("classify", source, "-o", out, "--probabilities", model=path)[0] == DONE
    if suffix == "parquet":
        from pyarrow import parquet

        table = parquet.read_table(out)
        labels = table["label"].to_pylist()
        own = np.stack([table[f"probability of {name}"].to_numpy() for name in NAMES], axis=1)
    elif suffix == "jsonl":
        values = [json.loads(line) for line in out.read_text().splitlines()]
        labels = [value["predicted label"] for value in values]
        own = [[value[f"probability of {name}"] for name in NAMES] for value in values]
    else:
        cells = rows(out)[1:] if suffix == "csv" else [line.split("\t") for line in out.read_text().splitlines()]
        at = 1 if suffix == "csv" else 0
        labels = [row[at].split("|") if row[at] else [] for row in cells]
        own = [[float(cell) for cell in row[at + 1 : at + 5]] for row in cells]
    assert labels == expected
    np.testing.assert_allclose(own, shares, atol=1e-4)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_rows_that_cannot_be_read_have_no_list(charcnn, path, tmp_path, suffix):
    source, out = tmp_path / f"in.{suffix}", tmp_path / f"out.{suffix}"
    if suffix == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": ["a", None, "c"]}), source)
    else:
        source.write_text({"csv": "text,n\na,1\nb\nc,3\n", "jsonl": '{"text": "a"}\n{"n": 1}\n{"text": "c"}\n'}[suffix])
    for words in ((), ("--probabilities",)):
        status = charcnn("classify", source, "-o", out, "--min-probability", 0, "--force", *words, model=path)[0]
        assert status == UNREADABLE
        if suffix == "csv":
            assert rows(out)[2][2:] == [""] * (5 if words else 2)
            assert rows(out)[1][2] == "|".join(NAMES)
        elif suffix == "jsonl":
            value = [json.loads(line) for line in out.read_text().splitlines()][1]
            assert {value[key] for key in value if key != "n"} == {None}
            assert len(value) == (6 if words else 3)
        else:
            table = parquet.read_table(out)
            assert table["label"].to_pylist() == [list(NAMES), None, list(NAMES)]
            assert [column[1].as_py() for column in table.columns] == [None] * (6 if words else 3)


def test_another_separator(charcnn, path, tmp_path, expected):
    source, out = written(tmp_path, "csv", TEXTS), tmp_path / "out.csv"
    assert charcnn("classify", source, "-o", out, "--label-separator", "/", model=path)[0] == DONE
    assert found(out, "csv", "/")[0] == expected
    status, _, err = charcnn("classify", source, "-o", out, "--force", "--label-separator", ";", model=path)
    assert status == UNUSABLE
    assert err.startswith("charcnn classify: the label 'c;d' holds ';', which separates labels")
    for wrong in ("||", "\t", '"', "é"):
        status, _, err = charcnn("classify", source, "-o", out, "--force", "--label-separator", wrong, model=path)
        assert status == UNUSABLE
        assert f"separator={wrong!r}: need one printable ASCII character" in err


def test_a_run_that_is_cut_off_keeps_to_its_separator(charcnn, interrupted, path, tmp_path):
    source, out, whole = written(tmp_path, "csv", TEXTS), tmp_path / "out.csv", tmp_path / "whole.csv"
    interrupted(2, "classify", source, "-o", out, model=path)
    status, _, err = charcnn("classify", source, "-o", out, "--label-separator", "/", model=path)
    assert status == UNUSABLE
    assert "is what another run left" in err
    status, _, err = charcnn("classify", source, "-o", out, "--label-separator", "|", model=path)
    assert status == DONE
    assert "resuming after row" in err
    charcnn("classify", source, "-o", whole, model=path)
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("way", ["csv", "jsonl", "parquet", "jsonl with texts"])
def test_evaluate(charcnn, path, tmp_path, shares, expected, way):
    rng = np.random.default_rng(0)
    has = (shares >= 0.5) ^ (rng.random(shares.shape) < 0.2)
    labels = [[NAMES[c] for c in np.flatnonzero(own)] for own in has]
    source, report = tmp_path / f"in.{way.split()[0]}", tmp_path / "r.json"
    if way == "csv":
        with open(source, "w", newline="") as file:
            joined = [" | ".join(own) for own in labels]
            csv.writer(file).writerows([("label", "text"), *zip(joined, TEXTS, strict=True)])
    elif way == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": TEXTS, "label": labels}), source)
    else:
        given = ["|".join(own) for own in labels] if "texts" in way else labels
        pairs = zip(given, TEXTS, strict=True)
        source.write_text("".join(json.dumps({"label": own, "text": text}) + "\n" for own, text in pairs))
    status, out, _ = charcnn("evaluate", source, "--json", report, model=path)
    assert status == DONE
    value, given = json.loads(report.read_text()), shares >= 0.5
    both, sums = (has & given).sum(axis=0), has.sum(axis=0) + given.sum(axis=0)
    assert value["rows"] == 160
    assert value["subset_accuracy"] == pytest.approx((has == given).all(axis=1).mean())
    assert value["micro_f1"] == pytest.approx(2 * both.sum() / sums.sum())
    assert value["macro_f1"] == pytest.approx((2 * both / sums).mean())
    assert [row["recall"] for row in value["classes"]] == pytest.approx((both / has.sum(axis=0)).tolist())
    assert [row["precision"] for row in value["classes"]] == pytest.approx((both / given.sum(axis=0)).tolist())
    assert out.startswith(f"subset accuracy {value['subset_accuracy']:.2%} (95 %: ")
    assert charcnn("evaluate", source, "--json", report, "--min-probability", 0, model=path)[0] == DONE
    assert [row["recall"] for row in json.loads(report.read_text())["classes"]] == [1] * 4


def test_evaluate_leaves_out_what_has_no_such_labels(charcnn, path, tmp_path):
    source, report = tmp_path / "in.jsonl", tmp_path / "r.json"
    given = [["plain"], [], ["plain", "x"], None, {"a": 1}, [1.5], 4, "c;d|plain", True]
    source.write_text("".join(json.dumps({"label": own, "text": "a"}) + "\n" for own in given))
    status, _, err = charcnn("evaluate", source, "--json", report, model=path)
    assert status == UNREADABLE
    value = json.loads(report.read_text())
    assert (value["rows"], value["left_out"]) == (4, 5)
    assert [row["rows"] for row in value["classes"]] == [0, 0, 1, 3]
    assert "row 3, line 3: label 'x' is not a class of the model" in err
    assert "row 4, line 4: no labels" in err
    assert "row 6, line 6: label [1.5]: need a list of texts or whole numbers, or a text" in err
    source.write_text('{"label": [0], "text": "a"}\n')
    status, _, err = charcnn("evaluate", source, model=path)
    assert status == UNUSABLE
    assert "row 1 has label '0': if that is a class, add --first-label 0" in err
