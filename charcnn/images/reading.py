"""A file or folder of pictures as rows of bytes."""

from __future__ import annotations

import os

import numpy as np

from charcnn.files import Path
from charcnn.images.arrays import read_idx, read_labels_beside, read_npy
from charcnn.images.pictures import FORMATS, read_picture
from charcnn.images.rows import Fit, Images


def read(path: Path, shape: tuple[int, int, int], *, resize: bool | int = False) -> Images:
    """Images of a file by its name: IDX (.idx, -ubyte, also with .gz), .npy, else a picture; or all of a folder.

    Of IDX images the labels lie beside, labels-idx1 for images-idx3. An .npy file has uint8 (N, H, W), (N, H, W, C),
    (H, W) or (H, W, C): a last axis of 1 or 3 is channels. Of a folder's files those that end as pictures are taken, by
    the order of their names. `pictures.read_picture` says what becomes of 16 bits, CMYK, palettes, transparency and
    EXIF. Colours become grey by ITU-R BT.601, and grey three equal channels, before anything is resized.

    Args:
        path: the file or folder.
        shape: (C, H, W) that images shall have, C 1 or 3.
        resize: what is done with images of another size. False: an error. True: height and width are scaled, each by
            its own factor. A number: the shorter side is scaled to that and the centre cropped, as torchvision's Resize
            and CenterCrop do; AlexNet takes 256 for 224 or 227. Bilinear and antialiased, by Pillow.

    Raises:
        OSError: the path cannot be read.
        ValueError: a file is no such file, damaged, or of another size; a folder has no pictures; Pillow is needed and
            not installed. Names the file.
    """
    fit, source = Fit(shape, resize), os.fspath(path)
    if os.path.isdir(source):
        endings = tuple(ending for of in FORMATS.values() for ending in of)
        names = tuple(sorted(name for name in os.listdir(source) if name.lower().endswith(endings)))
        if not names:
            raise ValueError(f"{source}: is a folder without pictures: need files that end in {', '.join(endings)}")
        files = [os.path.join(source, name) for name in names]
        return Images(np.concatenate([fit.rows(read_picture(file)[None], file) for file in files]), source, names=names)
    if source.removesuffix(".gz").endswith((".idx", "-ubyte")):
        pixels = read_idx(source, 3)[..., None]
        return Images(fit.rows(pixels, source), source, read_labels_beside(source, len(pixels)))
    if source.endswith(".npy"):
        return Images(fit.rows(read_npy(source), source), source)
    return Images(fit.rows(read_picture(source)[None], source), source, names=(os.path.basename(source),))
