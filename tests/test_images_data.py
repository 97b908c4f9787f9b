"""Data sets, labels, and the pictures drawn by code."""

from __future__ import annotations

import builtins
import gzip
import os
import re

import numpy as np
import pytest
from picture_files import COLOUR, GREY, IMAGES, LABELS, idx, npy, put

from charcnn import images
from charcnn.host.install import pip_install
from charcnn.images import datasets, rows
from charcnn.images.arrays import read_npy
from charcnn.images.pictures import read_picture


def test_labels_are_held_against_the_classes(tmp_path):
    path = put(tmp_path, IMAGES, idx(GREY))
    put(tmp_path, LABELS, idx(np.array([0, 9, 10], np.uint8)))
    found = images.read(path, (1, 4, 5))
    found.check_labels(11)
    with pytest.raises(ValueError, match=re.escape(f"{path}: label 10 of image 2: need 0 to 9")):
        found.check_labels(10)
    with pytest.raises(ValueError, match="label -1 of image 0: need 0 to 9"):
        images.Images(found.rows, "here", np.array([-1, 0, 0])).check_labels(10)
    images.Images(found.rows, "here").check_labels(1)


def test_inverted():
    found = images.Images(GREY.reshape(3, 20), "here", np.arange(3))
    np.testing.assert_array_equal(found.inverted().rows, 255 - GREY.reshape(3, 20))
    assert found.inverted().labels is found.labels


@pytest.fixture
def small_set(tmp_path):
    for part, count in (("train", 3), ("t10k", 2)):
        put(tmp_path, f"{part}-images-idx3-ubyte.gz", gzip.compress(idx(np.full((count, 28, 28), 200, np.uint8))))
        put(tmp_path, f"{part}-labels-idx1-ubyte.gz", gzip.compress(idx(np.arange(count, dtype=np.uint8))))
    return tmp_path


SETS = [(images.fashion_mnist, "CHARCNN_FASHION_MNIST"), (images.mnist, "CHARCNN_MNIST")]


@pytest.mark.parametrize(("load", "variable"), SETS)
def test_data_sets_in_a_folder_of_ones_own(small_set, monkeypatch, load, variable):
    monkeypatch.setenv(variable, str(small_set))
    assert load("train").labels.tolist() == [0, 1, 2]
    assert load().rows.shape == (2, 784)
    assert (load("test", (3, 32, 30), resize=True).rows == 200).all()
    with pytest.raises(ValueError, match="split='dev': need one of train, test"):
        load("dev")
    put(small_set, "t10k-labels-idx1-ubyte.gz", gzip.compress(idx(np.array([3, 10], np.uint8))))
    with pytest.raises(ValueError, match="label 10 of image 1: need 0 to 9"):
        load()
    (small_set / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ValueError, match=r"idx3-ubyte\.gz: has no file of labels next to it: .*name the folder"):
        load()


def test_data_sets_that_are_missing_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_DEBIAN", str(tmp_path))
    for name in ("CHARCNN_FASHION_MNIST", "CHARCNN_MNIST"):
        monkeypatch.setenv(name, "")
    missing = f"train-images-idx3-ubyte.gz is not in {tmp_path}: need it: apt install dataset-fashion-mnist, or name"
    with pytest.raises(ValueError, match=re.escape(missing)):
        images.fashion_mnist("train")
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte\.gz is missing: need it: name .* CHARCNN_MNIST"):
        images.mnist()


def test_fashion_mnist_of_debian(monkeypatch):
    monkeypatch.delenv("CHARCNN_FASHION_MNIST", raising=False)
    if not os.path.isdir(datasets._DEBIAN):
        pytest.skip("needs Debian's package dataset-fashion-mnist")
    found = images.fashion_mnist()
    assert found.rows.shape == (10_000, 784)
    assert np.bincount(found.labels).tolist() == [1000] * len(images.FASHION_CLASSES)
    assert np.median(found.rows[:, :28]) == 0, "bright on black"


def test_digits():
    held = pytest.importorskip("sklearn.datasets").load_digits()
    found = images.digits((1, 8, 8))
    np.testing.assert_array_equal(found.rows, np.rint(held.data * 255 / 16))
    np.testing.assert_array_equal(found.labels, held.target)
    assert images.digits().rows.shape == (1797, 784)


@pytest.mark.parametrize(
    ("module", "call", "message"),
    [
        ("sklearn.datasets", images.digits, "pip install scikit-learn"),
        ("PIL.Image", lambda: read_picture("a.png"), "a.png: needs Pillow: " + re.escape(pip_install("images"))),
        ("PIL.Image", lambda: rows.Fit((1, 4, 4), True).rows(GREY[..., None], "here"), "here: resizing: needs Pillow"),
    ],
)
def test_what_is_not_installed_is_named(monkeypatch, module, call, message):
    own = builtins.__import__

    def missing(name, *arguments, **options):
        if name == module:
            raise ImportError(name)
        return own(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 16, 20), (1, 64, 64)])
def test_the_sample(shape):
    found = images.sample(shape)
    assert found.rows.shape == (10, np.prod(shape))
    assert (found.labels, found.names) == (None, tuple("0123456789"))
    np.testing.assert_array_equal(found.rows, images.sample(shape).rows)
    pictures = found.rows.reshape(10, *shape).astype(int)
    assert (pictures == pictures[:, :1]).all(), "grey"
    assert len({row.tobytes() for row in found.rows}) == 10
    assert (pictures.max(axis=(1, 2, 3)) == 255).all()
    assert not pictures[:, :, [0, -1]].any()
    assert not pictures[:, :, :, [0, -1]].any()
    by_ink = [str(n) for n in np.argsort(pictures.sum(axis=(1, 2, 3)))]
    assert (by_ink[:2], by_ink[-1]) == (["1", "7"], "8"), "as segments of a display"


def test_the_sample_has_segments_where_a_display_has_them():
    picture = images.sample((1, 100, 100)).rows.reshape(10, 100, 100)
    places = {"a": (18, 50), "b": (34, 66), "c": (66, 66), "d": (82, 50), "e": (66, 34), "f": (34, 34), "g": (50, 50)}
    lit = [[name for name, at in places.items() if picture[n][at] == 255] for n in range(10)]
    assert ["".join(names) for names in lit[:5]] == ["abcdef", "bc", "abdeg", "abcdg", "bcfg"]


def test_arrays_need_no_pillow(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "require_pillow", None)
    assert images.read(put(tmp_path, "a.npy", npy(COLOUR)), (1, 4, 5)).rows.shape == (2, 20)
    assert read_npy(str(tmp_path / "a.npy")).shape == (2, 4, 5, 3)
