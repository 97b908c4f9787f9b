"""Training on few rows: the plan by size, n-grams to begin with, and doubts that are said."""

import argparse
import csv
import re

import numpy as np
import pytest

import charcnn
from charcnn.cli import train as command
from charcnn.config import SMALL, TINY
from charcnn.model import network
from charcnn.ops.conv1d.toom_cook.transforms import TAPS
from charcnn.runtime.sequence import require_multiples, whole_windows
from charcnn.text.encodings import ENCODINGS, encode
from charcnn.training import data, doubts, ngrams
from charcnn.training.measure import Measured
from charcnn.training.plan import MANY, PRESETS, plan

FORWARD, BYTES = ENCODINGS["forward"], ENCODINGS["bytes"]
WORDS = {"money": "bank profit market stocks", "space": "orbit probe rocket moon", "sport": "goal match team cup"}
FILLER = "today there was some more about it and others said so again".split()  # noqa: SIM905


def rows(count, seed=0):
    """Texts of six words, of which two are their class's."""
    rng = np.random.default_rng(seed)
    labels = [list(WORDS)[n % 3] for n in range(count)]
    texts = [
        " ".join(rng.permutation([*rng.choice(WORDS[label].split(), 2), *rng.choice(FILLER, 4)])) for label in labels
    ]
    return texts, labels


def written(path, count, seed=0):
    texts, labels = rows(count, seed)
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *zip(labels, texts, strict=True)])
    return path


def run(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


# The plan.


def test_few_rows_begin_with_as_many_ngrams_as_the_preset_says():
    for preset, count in PRESETS.items():
        found = plan(preset, [50] * 90, FORWARD, 3)
        assert found.ngrams
        assert (found.config.block_channels[0], found.config.length, found.config.alphabet) == (count, 132, 70)
    assert plan(None, [50] * 90, FORWARD, 3) == plan("balanced", [50] * 90, FORWARD, 3)
    assert plan(None, [300] * 90, BYTES, 30).config.length == 375
    assert plan(None, [9000] * 90, FORWARD, 30).config.length == 1023
    assert plan(None, [300] * 90, FORWARD, 30).config.block_channels[1] == 64, "for each class, and against it"


@pytest.mark.parametrize("preset", PRESETS)
def test_every_length_of_a_plan_fits_all_levels(preset):
    """conv2 has the seven taps of l19's filtering; Hopper's levels need whole windows in each pooling."""
    lengths = set()
    for text in range(1, 1200):
        config = plan(preset, [text] * 90, FORWARD, 4).config
        if config.length in lengths:
            continue
        lengths.add(config.length)
        for multiple in (8, 16):
            require_multiples(config, multiple)
            assert whole_windows(config, multiple) == config.conv_lengths[4]
        assert config.kernel_sizes[1] == TAPS
        assert config.conv_lengths[0] + 4 >= min(text, 963)
    assert (min(lengths), max(lengths)) == (132, 1023)


def test_many_rows_and_several_labels_and_sizes_that_are_given_begin_at_random():
    for asked in (
        {"preset": "best", "lengths": [9] * MANY},
        {"preset": None, "lengths": [9] * MANY, "cuda": True},
        {"preset": None, "lengths": [9] * 50, "multi_label": True},
    ):
        found = plan(encoding=FORWARD, classes=4, **asked)
        assert (found.ngrams, found.config.channels, found.recipe) == (False, SMALL.channels, {})
    assert plan(None, [9] * MANY, FORWARD, 4).ngrams, "the small network takes days on a CPU"
    assert plan(None, [9] * 50, FORWARD, 4, config=TINY).config == TINY
    with pytest.raises(ValueError, match="preset='quick': need one of laptop, balanced, best"):
        plan("quick", [9], FORWARD, 2)
    with pytest.raises(ValueError, match="preset='best': it says the sizes"):
        plan("best", [9], FORWARD, 2, config=TINY)


def test_a_rare_class_gives_a_row_to_validate_with():
    assert data.share(np.repeat([0, 1], [90, 10])) == 0.1
    for rarest in range(2, 10):
        labels = np.repeat([0, 1], [90, rarest])
        _, held = data.split(labels, data.share(labels), 0)
        assert np.count_nonzero(labels[held]) == 1
    assert data.share(np.array([0, 0, 1])) == 0


# N-grams.


@pytest.mark.parametrize("encoding", [FORWARD, BYTES], ids=["forward", "bytes"])
def test_the_first_layer_is_1_where_an_ngram_stands(encoding):
    texts, labels = rows(60)
    sizes = plan("laptop", [60] * 60, encoding, 3).config
    ids = encode(texts, encoding, sizes.length)
    examples = data.Examples(ids, np.array([list(WORDS).index(label) for label in labels]))
    arrays, spread, _ = ngrams.weights(examples, sizes, balance=True, teaching=0.7, seed=0)
    assert spread > 0
    one_hot = np.eye(encoding.blank + 1, dtype=np.float32)[ids][..., : encoding.blank]
    windows = np.lib.stride_tricks.sliding_window_view(one_hot, ngrams.LONGEST, axis=1)  # (N, L', alphabet, taps)
    weight, bias = arrays["conv1.weight"], arrays["conv1.bias"]
    used = weight.any(axis=(1, 2))
    found = np.einsum("nlat,cat->ncl", windows[:3], weight[used]) + bias[used, None]
    assert found.max() == 1
    for text, fires in zip(texts[:3], (found == 1).any(axis=2), strict=True):
        padded = f"{text} "
        for channel in np.flatnonzero(fires)[:50]:
            taps = weight[used][channel]
            gram = "".join(
                " "
                if (taps[:, t] < 0).any()
                else (encoding.alphabet or bytes(range(256)).decode("latin-1"))[int(taps[:, t].argmax())]
                for t in range(ngrams.LONGEST)
                if taps[:, t].any()
            )
            assert gram in padded
    logits = network.forward(ids[:8], arrays, sizes)
    assert np.mean(logits.argmax(1) == examples.labels[:8]) > 0.8


def test_texts_with_no_character_of_the_alphabet_are_refused():
    sizes = plan("laptop", [60] * 2, FORWARD, 2).config
    examples = data.Examples(encode(["山", "川"], FORWARD, sizes.length), np.array([0, 1]))
    with pytest.raises(ValueError, match="no row has 2 characters in a row that tell the classes apart"):
        ngrams.weights(examples, sizes, balance=False, teaching=0.7, seed=0)


def test_ngrams_that_one_row_has_fill_what_others_leave():
    ids = encode(["abcde x", "abcde y", "abcde x"], FORWARD, 20)

    def found(*way):
        table = ngrams._table(ids, FORWARD.blank, *way)
        np.testing.assert_allclose(np.bincount(table.row, table.value**2), 1, rtol=1e-6)
        texts = [bytes(byte - 1 for byte in code.to_bytes(8, "big") if byte) for code in table.codes.tolist()]
        return {"".join((FORWARD.alphabet + " ")[id] for id in text) for text in texts}

    four = {"abcd", "bcde", "cde "}
    assert found((True, (4,)), 3) == four, "what all rows have"
    assert found((False, (4,)), 3) == four | {"de x", "e x "}, "and what two have"
    assert found((False, (4,)), 6) == four | {"de x", "e x ", "de y", "e y "}, "and what one has"
    assert found((True, (2, 4)), 11) == four | {"ab", "bc", "cd", "de", "e ", " x", "x ", " y", "y "}


def test_the_network_adds_evidence_up_as_the_linear_model_does():
    """n-grams in all of a text's windows count, not those of the largest alone."""
    texts, labels = rows(60)
    sizes = plan("laptop", [200] * 60, FORWARD, 3).config
    numbers = np.array([list(WORDS).index(label) for label in labels])
    examples = data.Examples(encode(texts, FORWARD, sizes.length), numbers)
    arrays, *_ = ngrams.weights(examples, sizes, balance=True, teaching=0.7, seed=0)
    ids = encode(rows(12, 1)[0], FORWARD, sizes.length)
    one_hot = np.eye(FORWARD.blank + 1, dtype=np.float32)[ids][..., : FORWARD.blank]
    windows = np.lib.stride_tricks.sliding_window_view(one_hot, ngrams.LONGEST, axis=1)
    used = arrays["conv1.weight"].any(axis=(1, 2))
    found = np.tensordot(windows, arrays["conv1.weight"][used], ([2, 3], [1, 2])) + arrays["conv1.bias"][used]
    wanted = np.maximum(found, 0).sum(axis=1) @ arrays["conv2.weight"][:3, used, 0].T
    logits = network.forward(ids, arrays, sizes)
    for label in range(3):
        assert np.corrcoef(logits[:, label], wanted[:, label])[0, 1] > 0.9


@pytest.mark.parametrize("filler", [4, 30], ids=["short", "long"])
def test_what_a_text_begins_with_counts(filler):
    """One window alone has the first position. Of three equal positions a window it counted a third: 0.46 and 0.43."""
    rng, words = np.random.default_rng(0), WORDS["sport"].split()
    texts = [" ".join(rng.permutation([word, *rng.choice(FILLER, filler)])) for word in words * 6]
    sizes = plan("laptop", [len(text) for text in texts], FORWARD, 4).config
    examples = data.Examples(encode(texts, FORWARD, sizes.length), np.arange(24) % 4)
    arrays, *_ = ngrams.weights(examples, sizes, balance=True, teaching=0.7, seed=0)
    arrays["fc3.bias"][:] = 0

    def said(blanks):
        """What the words say for their own class, behind so many blanks."""
        ids = encode([" " * blanks + word for word in words], FORWARD, sizes.length)
        return np.diag(network.forward(ids, arrays, sizes)).mean()

    assert said(0) > 0.65 * np.mean([said(blanks) for blanks in range(27, 54, 3)])


def test_what_is_held_out_is_learned_from_once_it_was_measured():
    texts, labels = rows(60)
    how = {"device": "cpu", "preset": "laptop"}
    own = charcnn.train(texts, labels, **how)
    assert own.metadata["training"]["rows"] == 60
    assert own.metadata["training"]["learned_from_validation"]
    assert own.metadata["validation"]["rows"] == 6
    given = charcnn.train(texts, labels, valid=rows(30, 1), **how)
    assert "learned_from_validation" not in given.metadata["training"]


def test_a_few_rows_are_learned_by_default_and_more_epochs_lose_nothing(tmp_path):
    texts, labels = rows(60)
    other, wanted = rows(90, 1)
    classifier = charcnn.train(texts, labels, device="cpu", preset="laptop")
    assert classifier.score(other, wanted) > 0.9
    said = classifier.metadata["training"]
    assert (said["start"], said["recipe"], said["epoch"]) == ("n-grams", None, 0)
    longer = charcnn.train(texts, labels, device="cpu", preset="laptop", epochs=1)
    assert longer.metadata["training"]["recipe"]["epochs"] == 1
    assert longer.metadata["validation"]["accuracy"] >= classifier.metadata["validation"]["accuracy"]


def test_the_command_says_how_it_begins_and_what_other_ways_reach(tmp_path, capsys):
    out = tmp_path / "m.safetensors"
    options = ["--data", written(tmp_path / "a.csv", 60), "--out", out, "--device", "cpu", "--preset", "laptop"]
    assert run(*options, "--no-curve") == 0
    said = capsys.readouterr().out
    assert re.search(
        r"begins with \d+ n-grams of (4|2 to 5) characters (within|across) words that tell .* of 54 rows", said
    )
    assert "other ways on the same validation rows: always naming money would make it 33.33 %" in said
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.csv", "m.safetensors"]
    assert run(*options, "--config", "tiny", "--force") == 2
    assert "--preset laptop: it says the sizes; leave out --config" in capsys.readouterr().err


# Doubts.


def measured(right, wrong):
    return Measured(np.array([[right, wrong], [0, 50]]), 0.1)


def test_what_is_no_better_than_one_answer_is_said_loudly():
    said, warning = doubts.compared("validation", measured(0, 50), None, ("a", "b"), 100)
    assert warning == (
        "NO BETTER THAN ONE ANSWER FOR ALL: 50.00 % of the validation rows are right; always naming a would make it "
        "50.00 %. Do not use this model"
    )
    assert said.endswith("no linear model was fitted, as scikit-learn is missing")
    said, warning = doubts.compared("validation", measured(40, 10), 0.95, ("a", "b"), 100)
    assert "A LINEAR MODEL IS BETTER: 90.00 % of the validation rows are right, and 95.00 %" in warning
    assert "a linear model on character n-grams gets 95.00 % right" in said
    assert doubts.compared("validation", measured(40, 10), 0.9, ("a", "b"), 100)[1] is None
    assert "rows are more than 5,000" in doubts.compared("validation", measured(40, 10), None, ("a", "b"), 9000)[0]


def test_the_linear_model_reads_the_rows_as_they_were_encoded(monkeypatch):
    pytest.importorskip("sklearn", reason="the linear model is scikit-learn's")
    texts, labels = rows(90)
    numbers = np.array([list(WORDS).index(label) for label in labels])
    for encoding in (FORWARD, BYTES):
        examples = data.Examples(encode(texts, encoding, 123), numbers)
        assert doubts.linear_accuracy(examples.part(np.arange(60)), examples.part(np.arange(60, 90)), encoding) > 0.9
    monkeypatch.setattr(doubts, "MOST_COMPARED", 50)
    assert doubts.linear_accuracy(examples.part(np.arange(60)), examples, BYTES) is None
    monkeypatch.undo()
    monkeypatch.setattr(doubts, "find_spec", lambda name: None)
    assert doubts.linear_accuracy(examples, examples, BYTES) is None


def test_a_network_that_learned_nothing_is_said_to_be_one(tmp_path, capsys):
    options = ["--data", written(tmp_path / "a.csv", 60), "--out", tmp_path / "m.safetensors", "--device", "cpu"]
    assert run(*options, "--no-curve", "--config", "tiny", "--epochs", 1, "--rate", "1e-9") == 0
    said = capsys.readouterr()
    assert "charcnn train: warning: NO BETTER THAN ONE ANSWER FOR ALL: 33.33 % of the validation rows" in said.err
