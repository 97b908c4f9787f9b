"""The pixels of a picture file, by Pillow."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from charcnn.files import naming
from charcnn.images.rows import MAX_PIXELS, require_pillow

FORMATS = {
    "PNG": (".png",), "JPEG": (".jpg", ".jpeg"), "GIF": (".gif",), "BMP": (".bmp",), "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",), "PPM": (".pgm", ".ppm"),
}  # fmt: skip
"""What is read, and how such files' names end. Pillow knows more: for some of it other programs are started."""


def read_picture(path: str) -> np.ndarray:
    """A picture as uint8 (height, width, 3): red, green and blue.

    Turned as its EXIF orientation says; the first of several. Of 16 bits the upper eight; CMYK as (255 - C)(255 - K) /
    255, with no colour profile; palettes as their colours; whatever is transparent over white, as a page shows it.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a picture, or not a whole one, or has too many pixels; names the file.
    """
    pillow = require_pillow(path)
    with open(path, "rb") as file, naming(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Pillow warns of is converted as above, or an error
        try:
            image = pillow.Image.open(file, formats=tuple(FORMATS))
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.height} x {image.width} pixels are more than {MAX_PIXELS:,}")
            if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
                raise ValueError("32 bits a value")
            return _eight_bits(pillow, pillow.ImageOps.exif_transpose(image))
        except Exception as error:  # Pillow raises many kinds, by what is wrong with a file
            if isinstance(error, OSError) and error.errno is not None:
                raise
            unknown = isinstance(error, pillow.UnidentifiedImageError)
            reason = "is not a picture" if unknown else f"cannot be read ({' '.join(str(error).split())})"
            raise ValueError(f"{path}: {reason}: need a whole one of {', '.join(FORMATS)}") from error


def _eight_bits(pillow: Any, image: Any) -> np.ndarray:
    if image.mode[0] == "I":  # 16 bits, although a mode "I" has room for 32
        values = np.asarray(image)
        grey = np.where(values == image.info.get("transparency", -1), 255, values >> 8)
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
    if "transparency" in image.info or image.mode in ("LA", "PA", "RGBA", "RGBa"):
        image = image.convert("RGBA")
        image = pillow.Image.alpha_composite(pillow.Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image.convert("RGB"))
