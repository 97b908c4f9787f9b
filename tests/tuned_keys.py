"""Print what the levels ask `charcnn.ops.common.tile_choice` for at the full network, with no GPU and nothing compiled.

As JSON, by key: the GPU, the candidates, the one that is taken, and the one that the kernel is built with. Needs the
CUDA wheels.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":  # before numba is imported
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0"
    sys.path[:0] = [str(Path(__file__).parent.parent)]

import numpy as np

from charcnn import catalog
from charcnn.compiling.stand_in import Target, standing_in
from charcnn.config import SMALL
from charcnn.ops.common import tile_choice
from charcnn.ops.conv1d import double_buffered, tile
from charcnn.ops.conv1d.mma import config as mma_config
from charcnn.ops.conv1d.mma import layer as mma_layer
from charcnn.ops.conv1d.wgmma import layer as wgmma_layer
from charcnn.ops.conv1d.wgmma.config import WgmmaTile
from charcnn.tuning import layers

TILES = (tile.RegisterTile, mma_config.Stages, WgmmaTile)


def main() -> None:
    """Print the keys."""
    asked: dict[str, Any] = {}
    built: list[Any] = []
    choose = tile_choice._chosen

    def noting_key(gpu: str, key: tile_choice.Key, candidates: Any) -> Any:
        taken = choose(gpu, key, candidates)
        asked.setdefault(str(key), {"gpu": gpu, "candidates": list(map(asdict, candidates)), "taken": asdict(taken)})
        return taken

    def noting_tile(module: Any) -> Any:
        make_kernel = module.make_kernel

        def noting(*arguments: Any) -> Any:
            built.extend(asdict(getattr(one, "config", one)) for one in arguments if isinstance(one, TILES))
            return make_kernel(*arguments)

        return mock.patch.object(module, "make_kernel", noting)

    def repeated(drawn: np.ndarray, batch: int) -> np.ndarray:
        return np.empty((batch, *drawn.shape[1:]), drawn.dtype)

    with (
        standing_in(Target.named("sm_90a"), lambda *launch: None),
        mock.patch.object(tile_choice, "_chosen", noting_key),
        mock.patch.object(layers, "_repeated", repeated),
        mock.patch.object(layers, "DRAWN", 1),
        noting_tile(double_buffered),
        noting_tile(mma_layer),
        noting_tile(wgmma_layer),
    ):
        for level in layers.LEVELS:
            batch = inspect.signature(catalog.level(level).module.build).parameters["batch"].default
            for precision in catalog.level(level).precisions:
                for one in layers.of_level(level, SMALL, precision):
                    before = list(asked)
                    built.clear()
                    layers.prepare(one, batch).start(None)
                    for key in asked.keys() - before:
                        (asked[key]["built"],) = built
    print(json.dumps(asked))


if __name__ == "__main__":
    main()
