"""Files of pictures that are none, damaged or traps: one line that names the file, and what it needs."""

from __future__ import annotations

import contextlib
import gzip
import os
import pickle
import re
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from picture_files import COLOUR, GREY, IMAGES, LABELS, RNG, encoded, idx, npy, png, put, refused
from PIL import Image, ImageOps

from charcnn import images
from charcnn.images import arrays
from charcnn.images.pictures import FORMATS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing: need 00 00 08 03"),
        (b"\x00\x00", "begins with 00 00: need"),
        (idx(GREY)[:10], "begins with 00 00 08 03: need 00 00 08 03, IDX of bytes, and 3 sizes"),
        (idx(GREY.astype(np.uint8)[0]), "begins with 00 00 08 02: need 00 00 08 03"),
        (b"\x00\x00\x0d" + idx(GREY)[3:], "begins with 00 00 0d 03"),
        pytest.param(gzip.compress(idx(GREY), mtime=0), "begins with 1f 8b 08", id="gzip"),
        (idx(GREY)[:-1], "has 59 bytes after its header: need 60"),
        (idx(GREY) + b"\n", "has more bytes after its header: need 60"),
        (idx(GREY[:0]), "is of 0 x 4 x 5: need sizes of at least 1"),
        (idx(GREY[:, :, :0]), "is of 3 x 4 x 0: need sizes of at least 1"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_bad_idx(tmp_path, monkeypatch, content, message, pack):
    monkeypatch.setattr(arrays, "_PIECE", 20)  # so that the content ends with a piece
    path = put(tmp_path, "a.idx.gz" if pack is gzip.compress else "a.idx", pack(content))
    assert message in refused(path)


def test_bad_gzip(tmp_path):
    whole = gzip.compress(idx(GREY), mtime=0)
    wrong = bytearray(whole)
    wrong[-5] ^= 1  # of the checksum
    for content in (
        idx(GREY),
        whole[:-1],
        whole[:20],
        whole[:5],
        bytes(wrong),
        whole[:10] + b"\xff" * 40,
        whole + b"x",
    ):
        assert refused(put(tmp_path, "a.idx.gz", content)).endswith("need a whole gzip file, or a name without .gz")
    assert "has more bytes" in refused(put(tmp_path, "a.idx.gz", whole + whole))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(GREY[0, 0, :3])[:-1], "has 2 bytes after its header: need 3"),
        (idx(np.arange(2, dtype=np.uint8)), "has 2 labels: need 3, one for each of"),
        (idx(GREY), "begins with 00 00 08 03: need 00 00 08 01"),
    ],
)
def test_bad_labels(tmp_path, content, message):
    path, beside = put(tmp_path, IMAGES, idx(GREY)), put(tmp_path, LABELS, content)
    with pytest.raises(ValueError, match=re.escape(f"{beside}: {message}")):
        images.read(path, (1, 4, 5))


class Trap:
    """Of a pickle: whoever loads it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_npy_with_pickles(tmp_path):
    trap = tmp_path / "sprung"
    objects = np.empty((3, 4, 5), object)
    objects[0, 0, 0] = Trap(trap)
    assert "has object (3, 4, 5): need uint8" in refused(put(tmp_path, "a.npy", npy(objects)))
    assert "is not a .npy file" in refused(put(tmp_path, "b.npy", pickle.dumps(Trap(trap))))
    assert not trap.exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (GREY[0, 0], "has uint8 (5,)"),
        (np.uint8(3), "has uint8 ()"),
        (GREY[None, None], "has uint8 (1, 1, 3, 4, 5)"),
        (GREY[None], "has uint8 (1, 3, 4, 5)"),
        (GREY.astype(np.float32), "has float32 (3, 4, 5)"),
        (GREY.astype(np.int8), "has int8 (3, 4, 5)"),
        (GREY.view([("r", np.uint8)]), "has [('r', 'u1')] (3, 4, 5)"),
    ],
)
def test_npy_of_another_rank_or_dtype(tmp_path, values, message):
    path = put(tmp_path, "a.npy", npy(values))
    assert refused(path) == f"FILE: {message}: need uint8 (N, H, W), (N, H, W, C), (H, W) or (H, W, C), C 1 or 3"


def test_damaged_npy(tmp_path):
    whole = npy(GREY)
    wide = whole.replace(b"(3, 4, 5)", b"(3,-4,-5)")
    assert "has 59 bytes after" in refused(put(tmp_path, "a.npy", whole[:-1]))
    assert "has more bytes after" in refused(put(tmp_path, "a.npy", whole + b"x"))
    assert "is of 3 x -4 x -5" in refused(put(tmp_path, "a.npy", wide))
    assert "is of 0 x 4 x 5" in refused(put(tmp_path, "a.npy", npy(GREY[:0])))
    for content in (b"", whole[:9], whole[:40], b"\x89PNG", whole[:6] + b"\x02" + whole[7:], whole.replace(b"{", b"(")):
        assert "is not a .npy file" in refused(put(tmp_path, "a.npy", content))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.idx", b"\0\0\x08\3" + b"\xff" * 12),
        pytest.param("a.idx.gz", gzip.compress(b"\0\0\x08\3" + b"\xff" * 12 + bytes(1000), mtime=0), id="gzip"),
        ("a.npy", npy(GREY).replace(b"(3, 4, 5), }   ", b"(3, 400000000,5)}")),
        ("b.npy", npy(GREY)[:6] + b"\2\0\xff\xff\xff\xff" + npy(GREY)[10:]),
    ],
)
def test_sizes_in_a_header_allocate_nothing(tmp_path, name, content):
    path = put(tmp_path, name, content)
    tracemalloc.start()
    try:
        refused(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["a.idx", "a.idx.gz", "a.npy", "a.png"])
@given(data=st.data())
def test_what_is_changed_or_cut_is_read_or_refused(tmp_path_factory, name, data):
    content = {
        "a.idx": idx(GREY), "a.idx.gz": gzip.compress(idx(GREY), mtime=0), "a.npy": npy(GREY),
        "a.png": encoded(Image.fromarray(COLOUR[0]), exif=Image.Exif()),
    }[name]  # fmt: skip
    changed = bytearray(content[: data.draw(st.integers(0, len(content)))])
    for at in data.draw(st.lists(st.integers(0, len(content)), max_size=3)):
        if at < len(changed):
            changed[at] = data.draw(st.integers(0, 255))
    path = put(tmp_path_factory.mktemp("changed"), name, bytes(changed))
    with contextlib.suppress(ValueError):
        assert images.read(path, (1, 4, 5)).rows.shape[1] == 20
        return
    refused(path)


@pytest.mark.parametrize("kind", FORMATS)
def test_truncated_pictures(tmp_path, recwarn, kind):
    whole = encoded(Image.fromarray(RNG.integers(0, 256, (40, 50, 3), np.uint8)), kind)
    for kept in (3, 30, len(whole) // 2):
        message = refused(put(tmp_path, "a", whole[:kept]), (3, 40, 50))
        assert message.startswith(("FILE: cannot be read (", "FILE: is not a picture: "))
        assert message.endswith(f": need a whole one of {', '.join(FORMATS)}")
    assert not recwarn.list, "one line is all that is said"


def test_what_is_no_picture(tmp_path):
    zero = encoded(Image.fromarray(GREY[0])).replace(struct.pack(">2I", 5, 4), struct.pack(">2I", 0, 4))
    foreign = [encoded(Image.fromarray(COLOUR[0]), kind) for kind in ("EPS", "PCX", "TGA")]  # Ghostscript reads EPS
    for content in (b"", b"a text\n", idx(GREY), *foreign, zero, b"P5 0 4 255\n"):
        assert refused(put(tmp_path, "a.png", content)).startswith("FILE: is not a picture: need")


def test_whatever_pillow_says_becomes_one_line(tmp_path, monkeypatch):
    def broken(image):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(ImageOps, "exif_transpose", broken)
    path = put(tmp_path, "a.png", encoded(Image.fromarray(GREY[0])))
    assert refused(path).startswith("FILE: cannot be read (two lines): need")


@pytest.mark.parametrize("name", ["a", "a.npy", "a.idx", "a.idx.gz"])
def test_a_disk_that_fails_is_an_os_error(tmp_path, name):
    failing = Path("/proc/self/mem")  # whose first byte cannot be read
    if not failing.exists():
        pytest.skip("needs Linux")
    path = tmp_path / name
    path.symlink_to(failing)
    with pytest.raises(OSError, match="Input/output error") as info:
        images.read(path, (1, 4, 5))
    assert info.value.filename == str(path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("side", [8193, 12_000, 65_535])
def test_a_decompression_bomb_is_not_unpacked(tmp_path, side):
    bomb = png(side, side, depth=8, colour=0, samples=b"\0" * side)
    path = put(tmp_path, "a.png", bomb)
    assert "pixels" in refused(path, resize=True)
