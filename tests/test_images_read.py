"""Pictures as rows of bytes: what each kind of file becomes, in which colours and sizes."""

from __future__ import annotations

import gzip
import re
import struct

import numpy as np
import pytest
from picture_files import COLOUR, GREY, IMAGES, RNG, encoded, idx, npy, png, put, refused
from PIL import Image

from charcnn import images
from charcnn.images import rows
from charcnn.images.pictures import FORMATS, read_picture


@pytest.mark.parametrize("name", [IMAGES, f"{IMAGES}.gz", "a.idx", "a.idx.gz", "train-images.idx3-ubyte"])
@pytest.mark.parametrize("labelled", [False, True])
def test_idx(tmp_path, name, labelled):
    pack = gzip.compress if name.endswith(".gz") else bytes
    path = put(tmp_path, name, pack(idx(GREY)))
    if labelled:
        beside = name.replace("images-idx3", "labels-idx1").replace("images.idx3", "labels.idx1")
        put(tmp_path, beside.replace("a.idx", "labels.idx"), pack(idx(np.array([9, 0, 4], np.uint8))))
    found = images.read(path, (1, 4, 5))
    np.testing.assert_array_equal(found.rows, GREY.reshape(3, 20))
    assert (found.rows.dtype, found.source, found.names) == (np.uint8, str(path), None)
    if labelled and "images" in name:
        assert found.labels.dtype == np.int64
        assert found.labels.tolist() == [9, 0, 4]
    else:
        assert found.labels is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (GREY, GREY),
        (np.asfortranarray(GREY), GREY),
        (GREY[0], GREY[:1]),
        (GREY[0, :, :1], GREY[:1, :, :1]),
        (GREY[..., None], GREY),
        (GREY[0, ..., None], GREY[:1]),
        (COLOUR, COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR[0], COLOUR[:1].transpose(0, 3, 1, 2)),
    ],
    ids=["NHW", "fortran", "HW", "H1", "NHW1", "HW1", "NHWC", "HWC"],
)
def test_npy(tmp_path, values, expected):
    size = expected.shape[-2:]
    shape = (expected.shape[1] if expected.ndim == 4 else 1), *size
    found = images.read(put(tmp_path, "a.npy", npy(values)), shape)
    np.testing.assert_array_equal(found.rows, expected.reshape(len(expected), -1))
    assert found.labels is None


@pytest.mark.parametrize("kind", FORMATS)
def test_pictures_of_every_format(tmp_path, kind):
    lossless = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}
    flat = np.full((4, 5, 3), (200, 30, 90), np.uint8)  # which JPEG and a palette keep, too
    path = put(tmp_path, "picture", encoded(Image.fromarray(flat), kind, **lossless.get(kind, {})))
    found = images.read(path, (3, 4, 5))
    assert np.abs(found.rows.reshape(3, 4, 5).transpose(1, 2, 0).astype(int) - flat).max() <= 2 * (kind == "JPEG")
    assert found.names == ("picture",)


def test_a_folder_by_the_order_of_names(tmp_path):
    kinds = {"b.png": "PNG", "a.PGM": "PPM", "10.bmp": "BMP", "9.tif": "TIFF"}
    for n, (name, kind) in enumerate(kinds.items()):
        put(tmp_path, name, encoded(Image.fromarray(GREY[0] // 4 + n), kind))
    put(tmp_path, "README.txt", b"no picture")
    found = images.read(tmp_path, (1, 4, 5))
    assert found.names == ("10.bmp", "9.tif", "a.PGM", "b.png")
    np.testing.assert_array_equal(found.rows, np.stack([GREY[0].ravel() // 4 + n for n in (2, 3, 1, 0)]))


def test_an_empty_folder(tmp_path):
    put(tmp_path, "README.txt", b"no picture")
    assert refused(tmp_path).startswith("FILE: is a folder without pictures: need files that end in .png, ")


def test_a_folder_names_the_file_that_is_wrong(tmp_path):
    put(tmp_path, "a.png", encoded(Image.fromarray(GREY[0])))
    put(tmp_path, "b.png", encoded(Image.fromarray(GREY[0].T)))
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'b.png'}: has 5 x 4 pixels")):
        images.read(tmp_path, (1, 4, 5))


def test_what_is_missing_is_an_os_error(tmp_path):
    for name in ("a.idx", "a.idx.gz", "a.npy", "a.png", "a"):
        with pytest.raises(FileNotFoundError):
            images.read(tmp_path / name, (1, 4, 5))


# Colours.


def test_grey_is_pillows(tmp_path):
    path = put(tmp_path, "a.npy", npy(COLOUR))
    expected = [np.asarray(Image.fromarray(one).convert("L")).ravel() for one in COLOUR]
    np.testing.assert_array_equal(images.read(path, (1, 4, 5)).rows, expected)


def test_all_greys_stay_as_they_are(tmp_path):
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    path = put(tmp_path, "a.png", encoded(Image.fromarray(every)))
    np.testing.assert_array_equal(images.read(path, (1, 16, 16)).rows[0], every.ravel())


def test_grey_is_three_equal_channels(tmp_path):
    found = images.read(put(tmp_path, "a.idx", idx(GREY)), (3, 4, 5)).rows
    np.testing.assert_array_equal(found, np.tile(GREY.reshape(3, 20), 3))


def pixel(tmp_path, content: bytes) -> list[int]:
    found = read_picture(str(put(tmp_path, "picture", content)))
    assert (found.dtype, found.shape[2]) == (np.uint8, 3)
    return found[0, 0].tolist()


def test_of_16_bits_the_upper_eight(tmp_path):
    values = np.array([[0x12FF, 0xFFFF, 0x00FF]], np.uint16)
    for content in (
        encoded(Image.fromarray(values)),
        encoded(Image.fromarray(values), "TIFF"),
        b"P5 3 1 65535\n" + values.byteswap().tobytes(),
        png(3, 1, depth=16, colour=0, samples=values.byteswap().tobytes()),
        png(3, 1, depth=16, colour=2, samples=np.repeat(values, 3).byteswap().tobytes()),
        png(3, 1, depth=16, colour=4, samples=np.stack([values, values * 0 + 0xFFFF], 2).byteswap().tobytes()),
    ):
        found = read_picture(str(put(tmp_path, "picture", content)))
        np.testing.assert_array_equal(found, np.repeat([[[0x12], [0xFF], [0]]], 3, axis=2))


def test_32_bits_are_refused(tmp_path):
    for values in (np.ones((4, 5), np.float32), np.ones((4, 5), np.int32)):
        path = put(tmp_path, "a.tif", encoded(Image.fromarray(values), "TIFF"))
        assert "(32 bits a value)" in refused(path)


def test_cmyk(tmp_path):
    content = encoded(Image.new("CMYK", (5, 4), (51, 0, 255, 102)), "TIFF")
    assert pixel(tmp_path, content) == [round(204 * 153 / 255), 153, 0]


def test_a_palette_and_one_bit(tmp_path):
    image = Image.new("P", (5, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    assert pixel(tmp_path, encoded(image)) == [10, 20, 30]
    assert pixel(tmp_path, encoded(image, transparency=1)) == [255, 255, 255]
    assert pixel(tmp_path, encoded(image, transparency=0)) == [10, 20, 30]
    assert pixel(tmp_path, encoded(Image.new("1", (5, 4), 1))) == [255, 255, 255]


def test_what_is_transparent_is_over_white(tmp_path):
    for kind in ("PNG", "TIFF", "WEBP"):
        options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
        assert pixel(tmp_path, encoded(Image.new("RGBA", (5, 4), (200, 0, 100, 0)), kind, **options)) == [255, 255, 255]
        assert pixel(tmp_path, encoded(Image.new("RGBA", (5, 4), (200, 0, 100, 255)), kind, **options)) == [200, 0, 100]
    assert pixel(tmp_path, encoded(Image.new("RGBA", (5, 4), (200, 0, 100, 51)))) == [244, 204, 224]
    assert pixel(tmp_path, encoded(Image.new("LA", (5, 4), (100, 51)))) == [224, 224, 224]
    assert pixel(tmp_path, encoded(Image.new("RGB", (5, 4), (1, 2, 3)), transparency=(1, 2, 3))) == [255, 255, 255]
    assert pixel(tmp_path, encoded(Image.new("L", (5, 4), 7), transparency=7)) == [255, 255, 255]
    clear = struct.pack(">H", 0x1234)
    assert pixel(tmp_path, png(1, 1, depth=16, colour=0, samples=clear, tRNS=clear)) == [255, 255, 255]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_exif_turns_a_picture(tmp_path, kind):
    left = np.zeros((16, 32), np.uint8)
    left[:, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held so that the first row is the right-hand column
    path = put(tmp_path, "a", encoded(Image.fromarray(left).convert("RGB"), kind, exif=exif))
    found = images.read(path, (1, 32, 16)).rows.reshape(32, 16)
    assert (found[:14] > 250).all()
    assert (found[18:] < 5).all()


# Sizes.


@pytest.mark.parametrize("name", ["a.idx", "a.npy", "a.png"])
def test_another_size_needs_resizing(tmp_path, name):
    content = {"a.idx": idx(GREY), "a.npy": npy(GREY), "a.png": encoded(Image.fromarray(GREY[0]))}[name]
    path = put(tmp_path, name, content)
    assert refused(path, (1, 5, 4)) == "FILE: has 4 x 5 pixels: need 5 x 4, or resizing"
    assert images.read(path, (1, 5, 4), resize=True).rows.shape == (1 if name == "a.png" else 3, 20)
    assert images.read(path, (3, 2, 2), resize=3).rows.shape[1] == 12


def test_plain_resizing_scales_each_axis(tmp_path):
    path = put(tmp_path, "a.npy", npy(COLOUR))
    expected = [np.asarray(Image.fromarray(one).resize((7, 3), Image.Resampling.BILINEAR)) for one in COLOUR]
    found = images.read(path, (3, 3, 7), resize=True).rows
    np.testing.assert_array_equal(found, np.stack(expected).transpose(0, 3, 1, 2).reshape(2, -1))


def test_plain_resizing_leaves_what_fits(tmp_path):
    np.testing.assert_array_equal(
        images.read(put(tmp_path, "a.idx", idx(GREY)), (1, 4, 5), resize=True).rows, GREY.reshape(3, 20)
    )


@pytest.mark.parametrize("size", [(41, 67), (67, 41), (30, 30), (24, 24), (12, 90)])
def test_the_shorter_side_and_the_centre_as_torchvision(tmp_path, size):
    """torchvision 0.28 gives these very bytes; here its tensors' way, which rounds otherwise, stands in for it."""
    torch = pytest.importorskip("torch")
    smooth = np.add.outer(np.arange(size[0]) * 3, np.arange(size[1]) * 2).astype(np.uint8)
    picture = np.stack([smooth, RNG.integers(0, 256, size, np.uint8), smooth[::-1]], 2)
    path = put(tmp_path, "a.png", encoded(Image.fromarray(picture)))
    found = images.read(path, (3, 24, 21), resize=28).rows.reshape(3, 24, 21)
    scaled = [int(28 * side / min(size)) for side in size]
    whole = torch.nn.functional.interpolate(
        torch.tensor(picture.transpose(2, 0, 1)[None], dtype=torch.float32), scaled, mode="bilinear", antialias=True
    )[0].numpy()
    top, left = round((scaled[0] - 24) / 2), round((scaled[1] - 21) / 2)
    assert np.abs(whole[:, top : top + 24, left : left + 21] - found).max() < 1.01


def test_a_shorter_side_scales_what_fits(tmp_path):
    path = put(tmp_path, "a.npy", npy(GREY[:1]))
    inner = np.asarray(Image.fromarray(GREY[0]).resize((10, 8), Image.Resampling.BILINEAR))[2:6, 2:7]
    np.testing.assert_array_equal(images.read(path, (1, 4, 5), resize=8).rows, inner.reshape(1, 20))


@pytest.mark.parametrize("resize", [4, 0, -1, 5.0, None, "256"])
def test_resize_is_checked(tmp_path, resize):
    with pytest.raises(ValueError, match=f"resize={resize}: need True, False, or the shorter side, at least 5"):
        images.read(tmp_path, (1, 4, 5), resize=resize)


@pytest.mark.parametrize("shape", [(4, 5), (2, 4, 5), (1, 0, 5), (1, 4.0, 5)])
def test_shape_is_checked(tmp_path, shape):
    with pytest.raises(ValueError, match=re.escape(f"shape={shape}: need (C, H, W), C 1 or 3")):
        images.read(tmp_path, shape)


def test_a_long_picture_is_not_scaled_beyond_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "MAX_PIXELS", 10_000)
    path = put(tmp_path, "a.npy", npy(np.zeros((1, 1000), np.uint8)))
    assert refused(path, resize=5) == "FILE: is 5 x 5000 resized: need at most 10,000 pixels"
