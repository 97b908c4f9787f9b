"""The encoding `bytes`: any language in UTF-8, from texts to models, on every path that makes token ids."""

import argparse
import json
from dataclasses import replace

import numpy as np
import pytest
from commands import rows

from charcnn import catalog
from charcnn.classify.classifier import Classifier
from charcnn.cli import DONE, UNUSABLE
from charcnn.config import TINY
from charcnn.model import network, params
from charcnn.ops import reference
from charcnn.text import encodings
from charcnn.text.encodings import Encoding
from charcnn.training import changes
from charcnn.training.recipe import Recipe

BYTES = encodings.ENCODINGS["bytes"]
CONFIG = replace(TINY, alphabet=BYTES.blank)
TEXTS = ["Grüße", "こんにちは", "Привет, мир", ".", "a" * 500, "ASCII and ÄÖÜ"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("bytes") / "m.safetensors"
    params.save(path, params.init(CONFIG, seed=3), CONFIG, encoding="bytes", classes=encodings.CLASSES)
    return str(path)


def test_an_id_is_the_byte_and_the_blank_is_none_of_utf8():
    ids = encodings.encode(TEXTS, "bytes", 40)
    for row, text in zip(ids, TEXTS, strict=True):
        own = text.encode()[:40]
        assert row[: len(own)].tobytes() == own
        assert (row[len(own) :] == BYTES.blank).all()
    assert BYTES.blank == 255
    held = {byte for point in range(0x110000) if not 0xD800 <= point < 0xE000 for byte in chr(point).encode()}
    assert BYTES.blank not in held
    assert len(held) == 243


def test_what_is_no_utf8_keeps_its_bytes_but_one():
    ids = encodings.encode([b"\xe9\xff\x00\xfe", "\udce9"], "bytes", 5)
    assert ids.tolist() == [[0xE9, 255, 0, 0xFE, 255], [0xE9, 255, 255, 255, 255]]


def test_an_encoding_of_bytes_has_no_capitals_to_lower():
    for wrong in ({}, {"lowercase": True}):
        with pytest.raises(ValueError, match="lowercase=True: with alphabet=None ids are the bytes; need False"):
            Encoding("mine", alphabet=None, **wrong)
    mine = Encoding("mine", alphabet=None, lowercase=False, reverse=True, keep="tail")
    assert Encoding(**json.loads(json.dumps(mine.to_dict()))) == mine
    assert encodings.encode(["abc"], mine, 2).tolist() == [[ord("c"), ord("b")]]


def test_the_file_says_it(path):
    model = params.load(path)
    assert (model.encoding, model.config) == (BYTES, CONFIG)
    with pytest.raises(ValueError, match="encoding 'bytes' has 255 characters: need alphabet=70"):
        params.save(path + ".safetensors", params.init(TINY), TINY, encoding="bytes")
    with pytest.raises(ValueError, match="encoding 'forward' has 70 characters: the model has 255 one-hot channels"):
        Classifier(model, encoding="forward", device="cpu")


@pytest.mark.parametrize(
    "row", [row for row in catalog.LEVELS if row.device == "cpu" and "fp32" in row.precisions], ids=lambda row: row.name
)
def test_every_level_of_the_cpu(path, row):
    model = params.load(path)
    expected = reference.softmax(network.forward(encodings.encode(TEXTS, "bytes", CONFIG.length), model, CONFIG))
    np.testing.assert_allclose(Classifier(model, level=row.name).predict_proba(TEXTS), expected, atol=1e-5)


def test_explain_blanks_with_the_byte_that_is_none(path):
    classifier = Classifier.load(path, device="cpu")
    found = classifier.explain("Grüße", width=1)
    blanked = classifier.engine.logits(encodings.encode([b"Gr\xff\xff\xc3\x9fe"], "bytes", CONFIG.length))[0]
    whole = classifier.engine.logits(encodings.encode(["Grüße"], "bytes", CONFIG.length))[0]
    asked = int(whole.argmax())
    cost = (whole - blanked)[asked] - np.delete(whole - blanked, asked).mean()
    assert found.scores[2] == pytest.approx(cost, abs=1e-5)


def test_a_file(charcnn, path, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("text\n" + "\n".join(f'"{text}"' for text in TEXTS) + "\n")
    assert charcnn("classify", source, model=path)[0] == DONE
    found = [row[1] for row in rows(tmp_path / "in.labelled.csv")[1:]]
    assert found == Classifier.load(path, device="cpu").predict(TEXTS).tolist()


def test_words_of_bytes_end_at_spaces_and_after_some_bytes():
    text = "one  two\n" + "\u3042" * 9
    ids = np.repeat(encodings.encode([text], "bytes", 40), 400, axis=0)
    recipe = Recipe(blank_words=0.5, replace_characters=0, shift_left=0, shift_right=0)
    changed, _ = changes.changed(ids, np.arange(400), 255, recipe, 1.0, (0,))
    _words_of_bytes(ids, changed)
    torch = pytest.importorskip("torch", reason="engine torch needs PyTorch")
    from charcnn.training import augment

    torch.manual_seed(0)
    _words_of_bytes(ids, augment.blank_words(torch.from_numpy(ids), 255, 0.5).numpy())


def _words_of_bytes(ids, changed):
    parts = [range(3), range(5, 8), range(9, 21), range(21, 33), range(33, 36)]
    for word in map(list, parts):
        gone = changed[:, word] == 255
        assert np.array_equal(gone.all(1), gone.any(1))
        assert 0.4 < gone[:, 0].mean() < 0.6
    for space in (3, 4, 8):
        assert np.array_equal(changed[:, space], ids[:, space])


LANGUAGES = {"el": "ένα και δύο", "ru": "один и два", "ja": "一つと二つ"}


@pytest.mark.exhaustive
def test_training(tmp_path, capsys):
    from charcnn.cli import train

    source, out = tmp_path / "in.csv", tmp_path / "m.safetensors"
    rng = np.random.default_rng(0)
    lines = [f"{name},{''.join(rng.permutation(list(text)))}" for name, text in LANGUAGES.items() for _ in range(30)]
    source.write_text("label,text\n" + "\n".join(lines) + "\n")
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    words = f"--data {source} --out {out} --encoding bytes --device cpu --no-curve --batch 16 --epochs 30 --rate 1e-2"
    words += " --shift-left 0 --shift-right 9 --dropout 0 --blank-words 0 --average 1 --replace-characters 0 --config"
    status = train.run(parser.parse_args([*words.split(), json.dumps({"length": 123, "channels": 8, "units": 16})]))
    assert status == DONE
    model = params.load(out)
    assert (model.config.alphabet, model.config.channels, model.encoding) == (255, 8, BYTES)
    assert model.metadata["validation"]["accuracy"] > 0.7
    for wrong in ("huge", '{"length": 3}', '{"sizes": 3}'):
        assert train.run(parser.parse_args([*words.split(), wrong, "--force"])) == UNUSABLE
        assert f"--config {wrong}: need small, large, tiny, or sizes as JSON" in capsys.readouterr().err
