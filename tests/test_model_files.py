"""Model files that are damaged, foreign or hostile: refused before they cost anything, never loaded as another."""

import json
import random
import resource
import struct
import zipfile

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from charcnn.config import TINY
from charcnn.model import model_files
from charcnn.model.params import init, load, save
from charcnn.text.encodings import CLASSES, ENCODINGS, Encoding
from charcnn.text.names import LONGEST, check_classes, problem

DAMAGED = 1500
HUGE = 5_000_000_000


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "a.safetensors"
    save(path, init(TINY, 3), TINY, encoding="crepe", classes=CLASSES, accuracy=0.5)
    return path


def said(path):
    with safetensors.safe_open(path, "numpy") as file:
        return json.loads(file.metadata()["charcnn"])


def rewritten(path, fields, arrays=None):
    arrays = safetensors.numpy.load_file(path) if arrays is None else arrays
    safetensors.numpy.save_file(arrays, path, {"charcnn": json.dumps(fields)})


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_the_digest_is_of_weights_and_header(model):
    fields, arrays = said(model), safetensors.numpy.load_file(model)
    assert fields["format"] == model_files.FORMAT == 2
    rewritten(model, fields)
    assert same(load(model), init(TINY, 3))
    swapped = {**arrays, "conv3.weight": arrays["conv4.weight"], "conv4.weight": arrays["conv3.weight"]}
    moved = {**arrays, "fc3.bias": np.nextafter(arrays["fc3.bias"], np.float32(9))}
    half = {name: array.astype(np.float16).astype(np.float32) for name, array in arrays.items()}
    for changed in (swapped, moved, half):
        rewritten(model, fields, changed)
        with pytest.raises(ValueError, match=r"a\.safetensors: is damaged: its content does not match its digest"):
            load(model)
    for key, value in (
        ("classes", [*CLASSES[1:], CLASSES[0]]),
        ("encoding", ENCODINGS["forward"].to_dict()),
        ("metadata", {"accuracy": 0.75}),
        ("sha256", "0" * 64),
    ):
        rewritten(model, {**fields, key: value}, arrays)
        with pytest.raises(ValueError, match="is damaged: its content does not match its digest"):
            load(model)


def test_a_file_of_format_1_has_no_digest_and_loads(model):
    fields = said(model)
    del fields["sha256"]
    rewritten(model, {**fields, "format": 1})
    loaded = load(model)
    assert same(loaded, init(TINY, 3))
    assert loaded.classes == CLASSES
    rewritten(model, fields)
    with pytest.raises(ValueError, match="its fields are classes, config, encoding, format and 1 more: need"):
        load(model)


def test_a_header_under_another_key_is_damage(model):
    safetensors.numpy.save_file(init(TINY), model, {"chbrcnn": json.dumps(said(model))})
    with pytest.raises(ValueError, match="its metadata is damaged or foreign"):
        load(model, TINY)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_metadata_holds_finite_numbers(model, number):
    text = json.dumps(said(model)).replace("0.5", number)
    safetensors.numpy.save_file(init(TINY, 3), model, {"charcnn": text})
    with pytest.raises(ValueError, match="is not a finite number"):
        load(model)


def damaged(rng, data, header):
    """A truncation, or changed bytes: most of them in the header."""
    if rng.random() < 0.1:
        return data[: rng.randrange(len(data))]
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        position = rng.randrange(header) if rng.random() < 0.7 else rng.randrange(len(data))
        data[position] = rng.choice([data[position] ^ 1 << rng.randrange(8), rng.randrange(256)])
    return bytes(data)


def test_no_damaged_file_loads_as_another_model(model):
    whole, data, rng = load(model), model.read_bytes(), random.Random(1)
    (header,) = struct.unpack("<Q", data[:8])
    loaded = 0
    for _ in range(DAMAGED):
        model.write_bytes(damaged(rng, data, header + 8))
        try:
            found = load(model, rng.choice([None, TINY]))
        except ValueError:
            continue
        loaded += 1
        assert same(found, whole)
        assert found.config == whole.config
        assert found.encoding == whole.encoding
        assert found.classes == whole.classes
        assert found.metadata == whole.metadata
    assert loaded < DAMAGED / 20, "what is changed and loads was changed where it says nothing"


@pytest.mark.filterwarnings("ignore")  # PyTorch comments on what it is made to read
def test_no_damaged_checkpoint_loads_as_another_model(tmp_path):
    torch = pytest.importorskip("torch")
    path, whole, rng = tmp_path / "a.pt", init(TINY, 3), random.Random(2)
    torch.save({name: torch.from_numpy(array) for name, array in whole.items()}, path)
    data = path.read_bytes()
    for _ in range(DAMAGED // 3):
        path.write_bytes(damaged(rng, data, 3000))
        try:
            found = load(path, TINY)
        except ValueError:
            continue
        assert same(found, whole)


def peak():
    """Bytes that this process held at most."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_huge_tensor_is_refused_before_it_is_read(model):
    data = model.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    header["huge"] = {"dtype": "F32", "shape": [HUGE // 4], "data_offsets": [len(body), len(body) + HUGE]}
    text = json.dumps(header).encode()
    with open(model, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)
        file.truncate(8 + len(text) + len(body) + HUGE)
    before = peak()
    with pytest.raises(ValueError, match=r"a\.safetensors: huge is not of this network"):
        load(model)
    assert peak() - before < HUGE / 50
    with open(model, "r+b") as file:
        file.write(struct.pack("<Q", HUGE))
    with pytest.raises(ValueError, match=f"has a header of {HUGE:,} bytes"):
        load(model)


def test_a_huge_tensor_of_a_checkpoint_is_refused_before_it_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    path, before = tmp_path / "a.pt", peak()
    tensors = {name: torch.from_numpy(array) for name, array in init(TINY).items()}
    with torch.serialization.skip_data():  # a file with holes
        torch.save({**tensors, "huge": torch.empty(HUGE // 4)}, path)
    with pytest.raises(ValueError, match=r"a\.pt: huge is not of this network"):
        load(path, TINY)
    assert peak() - before < HUGE / 50


def test_a_checkpoints_checksums_hold(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pt"
    arrays = init(TINY)
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    data = bytearray(path.read_bytes())
    data[data.index(arrays["conv2.weight"].tobytes()) + 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.pt: is not a whole PyTorch checkpoint \(BadZipFile: Bad CRC-32"):
        load(path, TINY)


def test_a_checkpoint_is_as_pytorch_writes_it(tmp_path):
    torch = pytest.importorskip("torch")
    path, other = tmp_path / "a.pt", tmp_path / "b.pt"
    tensors = {name: torch.from_numpy(array) for name, array in init(TINY).items()}
    torch.save(tensors, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"not a zip file, which PyTorch writes since 1\.6"):
        load(path, TINY)
    torch.save(tensors, path)
    for how, message in (
        ({"compress_type": zipfile.ZIP_DEFLATED}, "holds compressed entries"),
        ({"extra": ("a/more", 17 << 20)}, "a/more has 17,825,792 bytes: need"),
        ({"twice": True}, "holds two entries of one name"),
    ):
        with zipfile.ZipFile(path) as whole, zipfile.ZipFile(other, "w") as copy:
            for entry in whole.infolist():
                copy.writestr(entry.filename, whole.read(entry), how.get("compress_type", zipfile.ZIP_STORED))
            if "extra" in how:
                copy.writestr(how["extra"][0], bytes(how["extra"][1]))
            if "twice" in how:
                with pytest.warns(UserWarning, match="Duplicate name"):
                    copy.writestr(entry.filename, b"")
        with pytest.raises(ValueError, match=rf"b\.pt: .*{message}"):
            load(other, TINY)


def test_a_bare_file_that_shrinks_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    save(path, init(TINY), TINY)
    monkeypatch.setattr(np, "fromfile", lambda file, dtype, count: np.zeros(count - 1, dtype))
    with pytest.raises(ValueError, match="shrank while it was read"):
        load(path, TINY)


@pytest.mark.parametrize("bad", ["", "a\nb", "a\x1b[31m", "\x00", "a\x7f", "\x9b2J", "\ud800", "a\u2028b", "\u202eabc"])
@pytest.mark.parametrize("blank", [False, True])
def test_a_name_that_a_terminal_or_a_file_would_trip_over(model, bad, blank):
    bad = f" {bad}" if blank else bad
    with pytest.raises(ValueError, match="classes: the name") as caught:
        save(model, init(TINY), TINY, classes=["a", "b", "c", bad])
    assert str(caught.value).isprintable()
    fields = said(model)
    for key, value in (("classes", ["a", "b", "c", bad]), ("encoding", {**fields["encoding"], "name": bad})):
        rewritten(model, {**fields, key: value})
        with pytest.raises(ValueError, match=r"its metadata is damaged or foreign: (classes: the|name=)") as caught:
            load(model)
        assert str(caught.value).isprintable()
    with pytest.raises(ValueError, match="name="):
        Encoding(bad)


def test_names():
    for good in ("Sci/Tech", "日本 語", "e\u0301", 'a "b"', "a" * LONGEST, "\U0001f600", "a\u200db"):
        assert problem(good) is None
    for bad in ("a ", "\u00a0a", "a\t", "a" * (LONGEST + 1)):
        assert problem(bad)
    many = tuple(f"class {n}" for n in range(50_000))
    check_classes(many, len(many))  # at once: their number is the file's choice
    with pytest.raises(ValueError, match="holds 'class 7' twice") as caught:
        check_classes((*many, "class 7"), len(many) + 1)
    assert len(str(caught.value)) < 400
