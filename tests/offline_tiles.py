"""Tiles that tuning may take in place of what ships, and tiles for few rows: each launched for the offline build."""

from __future__ import annotations

from unittest import mock

import numpy as np
from prepared import of_kind

from charcnn.config import SMALL
from charcnn.gpu import device
from charcnn.ops.common import tile_choice
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.wgmma import few_rows, split_k
from charcnn.ops.conv1d.wgmma.config import WgmmaTile
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.tuning import layers, measure

FEW_ROWS = "few rows of l15"
"""Of `wgmma`, which levels launch for few inputs; all else of the build is launched as for many."""

TILES = ("tiles of l12", "tiles of l14", "tiles of l15", FEW_ROWS)


def other_tiles(name: str) -> None:
    """Launch the kernel of one of TILES with every tile that there is to choose.

    That is at conv2, as pooling takes more registers than other ends; tiles for few rows at every kind of layer.
    """
    if name == FEW_ROWS:
        few_rows_tiles()
        return
    for layer in layers.of_level(name.split()[-1], SMALL):
        if layer.name == "conv2":
            work = layers.prepare(layer, 1)
            _, tiles = measure.asked(work)
            for tile in tiles[1:]:
                with tile_choice.trying(lambda *_, tile=tile: tile):
                    work.start(None)


def few_rows_tiles() -> None:
    """Launch every tile for few rows, at the network's layers; bf16 is one word in fp16's kernels."""
    shapes = {
        "pool": (7, (2, 336, 256)),
        "relu": (3, (2, 110, 256)),
        "stat": (3, (2, 104, 256)),
        "line": (1, (2, 1, 1024)),
    }
    for precision, of in TENSOR_PRECISIONS.items():
        for kind, (taps, (n, length, c_in)) in shapes.items() if precision != "bf16" else ():
            weight, bias = np.zeros((taps, c_in, 256), np.float32), np.zeros(256, np.float32)
            conv = of_kind(WgmmaConv, kind, weight, bias, precision=precision)
            x = np.zeros((n, length, of.terms * c_in), of.dtype)
            usual = WgmmaTile.of(taps, kind == "pool", of, measured=kind == "stat")
            method = conv.with_moments if kind == "stat" else conv.apply
            for tile in few_rows.candidates(usual, taps, of, kind == "stat", device.shared_limit()):
                with mock.patch.object(few_rows, "offered", return_value=(tile,)):
                    method(x)
            for split in split_k.candidates(conv._k_blocks, of, device.shared_limit()) if kind == "line" else ():
                with mock.patch.object(split_k, "offered", return_value=split):
                    method(x)
