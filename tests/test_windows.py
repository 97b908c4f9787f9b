"""Texts that are longer than the network takes: cut into windows, whose logits are averaged."""

import csv
import json
import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from commands import rows

from charcnn import catalog
from charcnn.classify.classifier import Classifier
from charcnn.cli import DONE, UNUSABLE
from charcnn.config import TINY
from charcnn.model import params
from charcnn.text import encodings
from charcnn.text.strings import PackedStrings
from charcnn.text.windows import TextWindows

LENGTH = TINY.length
SHARED = 31  # a quarter of 123, rounded up
SIZES = (2, 5, LENGTH - 1, LENGTH, LENGTH + 1, 2 * LENGTH - SHARED, 2 * LENGTH - SHARED + 1, 5000)


def text_of(size, seed=0):
    return np.random.default_rng([size, seed]).choice(list(b"abc def.\n,xyz"), size).astype(np.uint8).tobytes()


TEXTS = [text_of(size) for size in SIZES]
LONG = [n for n, size in enumerate(SIZES) if size > LENGTH]


def made(encoding="crepe", seed=3):
    found = encodings.ENCODINGS[encoding]
    config = replace(TINY, alphabet=found.blank)
    return params.Params(params.init(config, seed), config, found, encodings.CLASSES)


def cut(size, length=LENGTH, shared=SHARED):
    """Where windows begin, written once more: as few as overlap by a quarter at least, evenly."""
    if size <= length:
        return [0]
    count = next(n for n in range(2, size) if n * length - (n - 1) * shared >= size)
    return [place * (size - length) // (count - 1) for place in range(count)]


@pytest.mark.parametrize("most", [1, 3, 1000])
@pytest.mark.parametrize("keep", ["head", "tail", None])
def test_where_windows_lie(keep, most):
    offsets = np.cumsum([7, *SIZES])
    windows = TextWindows(offsets, LENGTH, keep)
    assert windows.texts.tolist() == LONG
    assert windows.counts.tolist() == [len(cut(SIZES[n])) for n in LONG]
    own = {"head": lambda n: [offsets[n]], "tail": lambda n: [offsets[n] + SIZES[n] - LENGTH], None: lambda n: []}[keep]
    found = {n: own(n) for n in LONG}
    for text, starts in windows.others(most):
        assert 1 <= len(text) == len(starts) <= most
        for n, start in zip(text, starts, strict=True):
            found[LONG[n]].append(start)
    for n, places in found.items():
        assert sorted(places) == [offsets[n] + place for place in cut(SIZES[n])]
        assert (np.diff(sorted(places)) <= LENGTH - SHARED).all(), "neighbours share a quarter"


def test_no_text_is_longer():
    assert not list(TextWindows(np.array([0, 3, 3, LENGTH], np.int32), LENGTH, "head").others(4))


@pytest.mark.parametrize(("given", "size", "shared"), [(True, LENGTH, SHARED), (50, 50, 13)])
@pytest.mark.parametrize("encoding", encodings.ENCODINGS)
def test_the_mean_of_the_windows_logits(encoding, given, size, shared):
    model = made(encoding)
    plain, classifier = Classifier(model, device="cpu"), Classifier(model, device="cpu", windows=given)
    expected = []
    for text in TEXTS:
        parts = [text[start : start + size] for start in cut(len(text), size, shared)]
        logits = plain.engine.logits(encodings.encode(parts, encoding, LENGTH)).astype(np.float64).mean(axis=0)
        shares = np.exp(logits - logits.max())
        expected.append(shares / shares.sum())
    for block in (1000, 3):  # windows are computed so many at a time, too
        classifier.rows = block
        found = classifier.predict_proba(TEXTS)
        np.testing.assert_allclose(found, expected, atol=2e-6)
    classifier.rows = plain.rows
    same = [n for n in range(len(TEXTS)) if SIZES[n] <= size]
    np.testing.assert_array_equal(classifier.predict_proba(TEXTS)[same], plain.predict_proba(TEXTS)[same])
    assert (found[LONG] != plain.predict_proba(TEXTS)[LONG]).any()
    assert classifier.score(TEXTS, classifier.predict(TEXTS)) == 1


@pytest.mark.parametrize(
    "row", [row for row in catalog.LEVELS if row.device == "cpu" and "fp32" in row.precisions], ids=lambda row: row.name
)
def test_on_every_level_of_the_cpu_what_fits_has_the_same_bits(row):
    plain, classifier = Classifier(made(), level=row.name), Classifier(made(), level=row.name, windows=True)
    expected, found = plain.predict_proba(TEXTS), classifier.predict_proba(TEXTS)
    same = [n for n in range(len(TEXTS)) if n not in LONG]
    np.testing.assert_array_equal(found[same], expected[same])
    np.testing.assert_allclose(found, Classifier(made(), device="cpu", windows=True).predict_proba(TEXTS), atol=1e-5)


@pytest.mark.parametrize("encode_on", ["cpu", "gpu"])
def test_on_a_gpu_or_in_the_simulator(encode_on):
    texts = [TEXTS[1], TEXTS[5]]
    classifier = Classifier(made(), device="cuda", encode_on=encode_on, windows=True)
    expected = Classifier(made(), device="cpu", windows=True).predict_proba(texts)
    np.testing.assert_allclose(classifier.predict_proba(texts), expected, atol=1e-5)
    classifier.close()


@pytest.mark.exhaustive
def test_memory_does_not_grow_with_a_text():
    classifier = Classifier(made(), device="cpu", windows=True)
    classifier.rows = 16
    classifier.predict(TEXTS[-1:])  # what is made once
    texts = encodings.pack([text_of(3_000_000)])
    tracemalloc.start()
    classifier.logits(PackedStrings(*texts))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20, f"{peak:,} bytes beside a text of 3,000,000"


def test_it_pickles_with_its_windows():
    classifier = Classifier(made(), device="cpu", windows=True)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(classifier)).predict_proba(TEXTS), classifier.predict_proba(TEXTS)
    )


def test_what_is_refused():
    for wrong in (1, -5, 124, 1.5, "yes"):
        with pytest.raises(ValueError, match=f"windows={wrong!r}: need 2 to 123 bytes, or True or False"):
            Classifier(made(), device="cpu", windows=wrong)
    classifier = Classifier(made(), device="cpu", windows=True)
    assert classifier.explain("a text that fits").label in encodings.CLASSES
    with pytest.raises(ValueError, match="text has 124 bytes: need at most 123, a single window"):
        classifier.explain("a" * 124)


def test_a_window_whose_logits_are_not_finite_is_its_rows(tmp_path):
    model = made("forward")
    weights = {**model, "fc3.bias": np.full(4, np.finfo(np.float32).max, np.float32)}
    weights["fc3.weight"] = np.full_like(model["fc3.weight"], 1e36)
    wrong = params.Params(weights, TINY, model.encoding, model.classes)
    with pytest.raises(ValueError, match=r"texts\[0\]: the logits are not finite"):
        Classifier(wrong, device="cpu", windows=True).predict([text_of(1000)])


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.csv"
    with open(path, "w", newline="") as file:
        own = [text_of(40 + 7 * n, 1).decode() for n in range(160)]
        csv.writer(file).writerows([("label", "text"), *zip(encodings.CLASSES * 40, own, strict=True)])
    return path


def predicted(source, **options):
    model = params.load(source.parent / "m.safetensors")
    return Classifier(model, device="cpu", **options).predict([row[1] for row in rows(source)[1:]]).tolist()


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.safetensors"
    params.save(path, made(), TINY)
    return str(path)


@pytest.mark.parametrize(("way", "size"), [((), LENGTH), (("--offload", "farm"), LENGTH), (("--window-size", 60), 60)])
def test_one_row_in_is_one_row_out(charcnn, tmp_path, source, model, way, size):
    report = tmp_path / "r.json"
    words = ("classify", source, "--windows", "--json", report, *way)
    assert charcnn(*words, model=model)[0] == DONE
    found = [row[2] for row in rows(tmp_path / "in.labelled.csv")[1:]]
    assert found == predicted(source, windows=size) != predicted(source)
    assert json.loads(report.read_text())["windows"] == size


def test_a_size_needs_windows(charcnn, source):
    status, _, err = charcnn("classify", source, "--window-size", 50)
    assert (status, err) == (UNUSABLE, "charcnn classify: --window-size 50: needs --windows\n")


def test_a_run_that_is_cut_off_keeps_to_its_windows(charcnn, interrupted, tmp_path, source):
    out, whole = tmp_path / "out.csv", tmp_path / "whole.csv"
    interrupted(2, "classify", source, "-o", out, "--windows")
    for other in ((), ("--windows", "--window-size", 50)):
        status, _, err = charcnn("classify", source, "-o", out, *other)
        assert status == UNUSABLE
        assert "is what another run left" in err
    status, _, err = charcnn("classify", source, "-o", out, "--windows")
    assert status == DONE
    assert "resuming after row" in err
    charcnn("classify", source, "-o", whole, "--windows")
    assert out.read_bytes() == whole.read_bytes()


def test_evaluate(charcnn, tmp_path, source, model):
    report = tmp_path / "r.json"
    for words, options in ((), {}), (("--windows",), {"windows": True}):
        assert charcnn("evaluate", source, "--json", report, *words, model=model)[0] == DONE
        found = json.loads(report.read_text())
        right = np.array(predicted(source, **options)) == np.array([row[0] for row in rows(source)[1:]])
        assert found["accuracy"] == pytest.approx(right.mean())
        assert found["windows"] == (LENGTH if words else None)
