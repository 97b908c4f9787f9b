"""Choose tiles for this GPU: check and time each candidate for the network's layers, and keep the fastest.

A kernel computes its result in tiles; which tile is fastest depends on the layer and the GPU. A candidate that does not
compile or gives wrong results is never chosen. The choices go to a file in your cache, which levels and operators read
when they start. Without it they use the tiles that ship for the GPU, or else a rule.

The first GPU is measured; CUDA_VISIBLE_DEVICES makes another one the first.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from charcnn.cli import DONE, FAILED
from charcnn.cli.sizes import HELP, config_of
from charcnn.config import SMALL, TINY
from charcnn.host.arguments import count
from charcnn.host.terminal import printable

if TYPE_CHECKING:
    from charcnn.tuning.measure import Tuned

SIMULATED_BATCH = 2

EPILOG = """examples:
  charcnn tune                      all levels that this GPU runs
  charcnn tune --levels l14 --precision bf16 --dry-run
  charcnn tune --levels l13 --config '{"channels": 1024, "units": 2048}'
  CHARCNN_CACHE=/shared/tiles charcnn tune     levels need the same setting

exit status: 0 done; 1 a layer has no right candidate; 2 unusable options, files or machine"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to tune."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("--levels", nargs="+", metavar="LEVEL", help="levels to tune (default: all that this GPU runs)")
    add("--precision", metavar="P", help="arithmetic (default: each level's own)")
    add("--config", default=None, metavar="SIZES", help=f"{HELP} (default small)")
    add("--batch", type=count, metavar="B", help="inputs per batch (default: each level's own)")
    add("--dry-run", action="store_true", help="measure and print; write nothing")


def run(options: argparse.Namespace) -> int:
    """Tune; the exit status."""
    from charcnn.gpu import device
    from charcnn.ops.common import tile_choice
    from charcnn.tuning.layers import of_level
    from charcnn.tuning.measure import tune

    device.gpu_count()
    config = (TINY if device.SIMULATED else SMALL) if options.config is None else config_of(options.config)
    if device.SIMULATED and config != TINY:
        raise ValueError(
            f"--config {options.config}: the simulator would take hours at these sizes; run with --config tiny, or on "
            "a machine with an NVIDIA GPU"
        )
    work = [(name, list(of_level(name, config, options.precision))) for name in _levels(options)]
    gpu, seen, status = device.gpu_name(), set[Any](), DONE
    path = tile_choice.cache_file(gpu)
    if device.SIMULATED:
        print("No GPU in use: kernels run in Numba's simulator, and its times say nothing of a GPU.")
    goes = "the chosen tiles go to" if not options.dry_run else "nothing is written to"
    print(f"{gpu}: {goes} {printable(str(path))}")
    for name, layers in work:
        batch = options.batch or _batch(name)
        for layer in layers:
            tuned = tune(layer, batch, seen)
            if tuned is None:
                continue
            _show(name, batch, tuned)
            if tuned.chosen is None:
                status = FAILED
            elif not options.dry_run:
                tile_choice.store(path, gpu, {str(tuned.key): tuned.entry()})
    if not any(isinstance(one, tile_choice.Key) for one in seen):
        print("nothing to choose: each layer has only one tile in this precision")
    return status


def _levels(options: argparse.Namespace) -> list[str]:
    """Those that are named; else those that have the precision and that the current GPU runs."""
    from charcnn import catalog
    from charcnn.gpu import device
    from charcnn.levels.runner.options import serves
    from charcnn.tuning.layers import LEVELS

    if options.levels:
        for row in (catalog.level(name) for name in options.levels if name in LEVELS):
            if row.tensor_cores:  # whose times the emulator does not have
                device.require_tensor_cores(row.name, hopper=row.hopper, turing=row.turing, emulated=False)
        return list(dict.fromkeys(options.levels))
    rows = [catalog.level(name) for name in LEVELS]
    if options.precision is not None:
        rows = [row for row in rows if options.precision in row.precisions]
        if not rows:
            raise ValueError(f"--precision {options.precision}: no level whose tiles can be chosen computes in it")
    found = [row for row in rows if serves(row, options.precision)]
    if not found:
        raise device.DeviceError(f"{catalog.level_ranges(rows)}: this GPU runs none of them")
    return [row.name for row in found]


def _batch(level: str) -> int:
    import inspect

    from charcnn import catalog
    from charcnn.gpu import device

    build = inspect.signature(catalog.level(level).module.build)
    return SIMULATED_BATCH if device.SIMULATED else int(build.parameters["batch"].default)


def _show(level: str, batch: int, tuned: Tuned) -> None:
    tiles = [asdict(candidate.tile) for candidate in tuned.candidates]
    names = [name for name in tiles[0] if len({tile[name] for tile in tiles}) > 1]
    rows = [", ".join(f"{name} {tile[name]}" for name in names) for tile in tiles]
    width = max(map(len, rows))
    print(f"\n{level} {tuned.layer.name}, {batch} inputs: {tuned.key}")
    print(f"  {'candidate':<{width}}  {'us':>10}  TFLOP/s")
    for text, candidate in zip(rows, tuned.candidates, strict=True):
        if candidate.problem is not None:
            print(f"  {text:<{width}}  {candidate.problem}")
            continue
        rate = tuned.layer.flop * batch / candidate.microseconds / 1e6
        marks = ["chosen"] * (candidate is tuned.chosen) + ["without tuning"] * (candidate is tuned.before)
        print(f"  {text:<{width}}  {candidate.microseconds:>10.1f}  {rate:>7.1f}  {', '.join(marks)}".rstrip())
    if tuned.chosen is None:
        print("  no candidate gives right results: none is chosen")
    elif tuned.gain is None:
        print("  the tile used without tuning gives wrong results here")
    else:
        print(f"  {tuned.gain:.1%} less time than without tuning", flush=True)
