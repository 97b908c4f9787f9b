"""Measure the error of right logits, and of deliberately wrong ones, in sigmas: what `charcnn.model.rounding` rests on.

Each level runs in each precision, on random weights and on the shipped model, over random ids, texts with changed
characters, full-length texts, constant and blank ones. Wrong logits come from an input zeroed, two swapped, all logits
equal, FP8's in place of each other precision's, and in each layer a tap shifted or a bias dropped. PyTorch computes the
reference on a GPU, else NumPy. A run of all levels writes results/MACHINE-validation.json.

Exit status: 0 all right logits are within their bound, 1 some are not, 2 unusable options.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import emulated
import numpy as np
import raw

from charcnn import catalog
from charcnn.config import SMALL, TINY, Config
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.model import calibrate, network, params, validation
from charcnn.model.rounding import Rounding
from charcnn.model.shipped import FILES
from charcnn.ops.conv1d.layers import SPREAD
from charcnn.ops.token_conv1d.layers import ALONE
from charcnn.text import encodings, texts

WEIGHTS = raw.RESULTS.parents[1] / "charcnn" / "model" / "weights"

LEVELS = tuple(row.name for row in catalog.LEVELS if row.tuned)
"""Which are run where none is named."""

SAMPLE = 12
"""Inputs that a level's own validation looks at: a mutant that spoils all of them is caught if one of so many shows."""

SPOILED = 64
"""Inputs on which shifted taps and dropped biases are looked at."""

OF_FEW = "fp16", "bf16"
"""Level 16 has kernels of its own for few inputs. In these precisions each limit is tried, with FEW_INPUTS."""

FEW_INPUTS = 1024

KINDS = {"random": 0.3, "texts": 0.3, "full": 0.2, "constant": 0.1, "blank": 0.1}
"""Shares of the inputs."""


def draw(n: int, config: Config, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (n, L), all different but by chance, and the kind of each, an index of KINDS."""
    rng = np.random.default_rng(seed)
    sample = encodings.encode(texts.sample().texts, "crepe", config.length)
    kinds = np.sort(rng.choice(len(KINDS), n, p=list(KINDS.values())))
    ids = np.empty((n, config.length), np.uint8)
    lengths = (sample < config.alphabet).cumsum(axis=1).argmax(axis=1) + 1
    for i, kind in enumerate(kinds):
        name, changed = list(KINDS)[kind], 0
        if name == "random":
            ids[i] = rng.integers(0, config.alphabet + 1, config.length)
        elif name == "texts":
            ids[i], changed = sample[rng.integers(len(sample))], 20
        elif name == "full":
            some = rng.integers(len(sample), size=1 + config.length // 40)
            joined = np.concatenate([sample[j, : lengths[j]] for j in some])
            ids[i] = np.resize(joined, config.length)
        elif name == "constant":
            ids[i], changed = rng.integers(config.alphabet), int(rng.integers(3))
        else:
            ids[i], changed = config.alphabet, int(rng.integers(4))
        ids[i, rng.integers(config.length, size=changed)] = rng.integers(0, config.alphabet + 1, changed)
    return ids, kinds


class Torch(network.Arrays):
    """The reference's arithmetic by PyTorch on a GPU: features in float64, variances and gradients in float32."""

    def __init__(self, where: str = "cuda") -> None:
        import torch

        self.xp, self._torch, self._where = torch, torch, where

    def exact(self, value: np.ndarray) -> Any:
        """On the GPU."""
        return self._torch.from_numpy(np.ascontiguousarray(value)).to(self._where)

    def rough(self, value: Any) -> Any:
        """In float32."""
        return value.float()

    def index(self, ids: np.ndarray) -> Any:
        """Indices as integers of 64 bits."""
        return self.exact(ids.astype(np.int64))

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """On the GPU."""
        return self._torch.zeros(shape, device=self._where)

    def unit_gradient(self, classes: int) -> Any:
        """On the GPU."""
        return self._torch.eye(classes, device=self._where)[None, :, :, None]

    def conv1d(self, x: Any, weight: Any) -> Any:
        """By cuDNN or cuBLAS."""
        if x.shape[2] == 1:
            return super().conv1d(x, weight)
        length, taps = x.shape[2] - weight.shape[2] + 1, weight.permute(2, 0, 1).contiguous()
        y = taps[0] @ x[:, :, :length]
        for k in range(1, len(taps)):
            y += taps[k] @ x[:, :, k : k + length]
        return y


class Reference:
    """The float64 reference: on a GPU by PyTorch, where both are there; else by NumPy."""

    def __init__(self, at_once: int) -> None:
        self.arrays: network.Arrays = network.Arrays()
        self.by, self.at_once = "NumPy", 8
        if find_spec("torch") and not device.SIMULATED:
            import torch

            if torch.cuda.is_available():
                torch.backends.cuda.matmul.allow_tf32 = True  # of variances and gradients, which need few digits
                self.arrays, self.by, self.at_once = Torch(), f"PyTorch {torch.__version__}", at_once

    def __call__(
        self,
        ids: np.ndarray,
        weights: Mapping[str, np.ndarray],
        config: Config,
        roundings: Sequence[Rounding],
        eps: Any,
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Logits and sigmas, as NumPy arrays."""
        logits = np.empty((len(ids), config.classes))
        sigmas = [np.empty_like(logits) for _ in roundings]
        for start in range(0, len(ids), self.at_once):
            part = slice(start, start + self.at_once)
            given = {"eps": eps, "arrays": self.arrays}
            y, found = network.forward_with_sigma(ids[part], weights, config, roundings, **given)
            for to, value in zip((logits, *sigmas), (y, *found), strict=True):
                to[part] = value if isinstance(value, np.ndarray) else value.cpu().numpy()
        return logits, sigmas


@dataclass(frozen=True)
class Row:
    """A level in a precision."""

    level: catalog.Level
    precision: str
    batch: int | None = None
    """Inputs a batch; None: the level's own."""

    @property
    def name(self) -> str:
        """The name that --levels takes."""
        name = self.level.name if self.precision == self.level.precision() else f"{self.level.name}-{self.precision}"
        return name if self.batch is None else f"{name}, N={self.batch}"

    @property
    def rounding(self) -> Rounding:
        """Of both."""
        return self.level.rounding(self.precision)


def rows(named: str | None) -> list[Row]:
    """Those that --levels names: l14 is all its precisions, l14-bf16 one.

    Raises:
        ValueError: there is no such level, or it has not that precision.
    """
    found = []
    for name in named.split(",") if named else LEVELS:
        level, _, precision = name.partition("-")
        if level not in [row.name for row in catalog.LEVELS]:
            raise ValueError(f"--levels {name}: need {', '.join(row.name for row in catalog.LEVELS)}")
        row = catalog.level(level)
        found += [Row(row, one) for one in ([row.precision(precision)] if precision else row.precisions)]
    of_few = [row for row in found if row.level.name == "l16" and row.precision in OF_FEW]
    return found + [Row(row.level, row.precision, batch) for row in of_few for batch in (ALONE, *SPREAD[row.precision])]


def spoiled(weights: Mapping[str, np.ndarray], config: Config) -> Iterator[tuple[str, str, dict[str, np.ndarray]]]:
    """Weights with a mistake in one layer: kind, layer, and the weights."""
    for block in range(1, 7):
        name = f"conv{block}.weight"
        yield "tap shifted", f"conv{block}", {**weights, name: np.roll(weights[name], 1, axis=2)}
    for layer in (*(f"conv{block}" for block in range(1, 7)), "fc1", "fc2", "fc3"):
        name = f"{layer}.bias"
        yield "bias dropped", layer, {**weights, name: np.zeros_like(weights[name])}


def caught(errors: np.ndarray, bound: float) -> dict[str, float]:
    """Of errors of inputs that are all wrong: the least, the median, how many are above the bound, and how many samples
    as validation draws them hold one that is."""
    rng = np.random.default_rng(0)
    samples = errors[rng.integers(len(errors), size=(1000, min(SAMPLE, len(errors))))].max(axis=1)
    return {
        "least": float(errors.min()),
        "median": float(np.median(errors)),
        "above": float((errors > bound).mean()),
        "least_of_samples": float(samples.min()),
        "samples_above": float((samples > bound).mean()),
    }


def mutants(
    right: np.ndarray, expected: np.ndarray, sigma: np.ndarray, ids: np.ndarray, bound: float
) -> dict[str, dict[str, Any]]:
    """What each mistake shows."""
    rng, n = np.random.default_rng(1), len(ids)
    order = rng.permutation(n)
    other = np.roll(order, 1)
    distinct = (ids[order] != ids[other]).any(axis=1)
    order, other = order[distinct], other[distinct]
    swapped = validation.in_sigmas(right[other], expected[order], sigma[order])
    back = validation.in_sigmas(right[order], expected[other], sigma[other])
    found: dict[str, dict[str, Any]] = {
        "zeroed": caught(validation.in_sigmas(np.zeros_like(right), expected, sigma), bound),
        "swapped": caught(np.maximum(swapped, back), bound),
        "constant": caught(validation.in_sigmas(np.broadcast_to(right.mean(0), right.shape), expected, sigma), bound),
    }
    return found


def mistakes(
    right: np.ndarray, expected: np.ndarray, sigma: np.ndarray, bound: float, differences: Sequence[Any]
) -> dict[str, dict[str, Any]]:
    """What mistakes in weights show, each in the layer where it shows least."""
    worst: dict[str, dict[str, Any]] = {}
    for kind, layer, moved in differences:
        one = caught(validation.in_sigmas(right + moved, expected, sigma), bound)
        if kind not in worst or one["least_of_samples"] < worst[kind]["least_of_samples"]:
            worst[kind] = {"layer": layer, **one}
    return worst


def measure(options: argparse.Namespace, chosen: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each level, precision and weights."""
    config, reference, result = options.size, Reference(options.at_once), []
    models = [(f"random, seed {seed}", params.init(config, seed)) for seed in options.seeds]
    if config == SMALL:
        models.append((FILES["accurate"], params.load(WEIGHTS / FILES["accurate"])))
    ids, kinds = draw(options.inputs, config)
    some = slice(None, None, max(1, len(ids) // SPOILED))
    for title, weights in models:
        begun = time.perf_counter()
        plain = {row.rounding: None for row in chosen if not row.rounding.scaled}
        expected, sigmas = reference(ids, weights, config, list(plain), network.EPS)
        by_rounding = dict(zip(plain, sigmas, strict=True))
        for rounding in {row.rounding for row in chosen if row.rounding.scaled}:
            scaled, eps = calibrate.scaled(weights, config, rounding)
            by_rounding[rounding] = reference(ids, scaled, config, [rounding], eps)[1][0]
        check = network.forward(ids[some][:4], weights, config)
        apart = float(abs(check - expected[some][:4]).max() / abs(check).max())
        moved = [
            (kind, layer, reference(ids[some], bad, config, [], network.EPS)[0] - expected[some])
            for kind, layer, bad in spoiled(weights, config)
        ]
        taken = time.perf_counter() - begun
        print(
            f"{title}: reference of {len(ids):,} inputs by {reference.by} in {taken:.1f} s, {apart:.0e} from NumPy's",
            flush=True,
        )
        assert apart < 1e-12, f"the reference is off by {apart:.1e}"
        fp8: dict[int, np.ndarray] = {}
        for row in chosen:
            begun, level = time.perf_counter(), row.level
            part = slice(None, None, 1 if row.batch is None else max(1, len(ids) // FEW_INPUTS))
            if options.emulated:
                blocks = [ids[part][start : start + 32] for start in range(0, len(ids[part]), 32)]
                right = np.concatenate(
                    [_emulated(block, weights, config, row.precision, row.rounding.toom_cook) for block in blocks]
                )
            else:
                right = _run(row, weights, config, ids[part], options.batch)
            if row.precision == "fp8":
                fp8[0] = right
            sigma, exact = by_rounding[row.rounding][part], expected[part]
            errors = validation.in_sigmas(right, exact, sigma)
            bound = row.rounding.bound
            found = mutants(right, exact, sigma, ids[part], bound)
            if fp8 and row.precision != "fp8":
                found["FP8 for it"] = caught(validation.in_sigmas(fp8[0][part], exact, sigma), bound)
            if row.batch is None:
                found |= mistakes(right[some], expected[some], sigma[some], bound, moved)
            result.append(
                {
                    "level": level.name,
                    "precision": row.precision,
                    "batch": row.batch,
                    "weights": title,
                    "inputs": len(errors),
                    "bound": bound,
                    "largest": float(errors.max()),
                    "rms": float(np.sqrt(np.square(errors).mean())),
                    "within": bool(errors.max() <= bound),
                    "largest_of": {name: _largest(errors, kinds[part] == i) for i, name in enumerate(KINDS)},
                    "relative": float(np.linalg.norm(right - exact) / np.linalg.norm(exact)),
                    "mutants": found,
                    "seconds": time.perf_counter() - begun,
                }
            )
            _show(row, result[-1])
    return result


def _run(row: Row, weights: Any, config: Config, ids: np.ndarray, batch: int | None) -> np.ndarray:
    """A level's logits."""
    options: dict[str, Any] = dict(row.level.build_options(row.precision))
    if (chosen := row.batch or batch) is not None:
        options["batch"] = chosen
    if row.level.device == "cuda":
        options["gpus"] = [0]
    run = row.level.module.build(weights, config, **options)
    return np.asarray(run(ids))


def _largest(errors: np.ndarray, which: np.ndarray) -> float:
    return float(errors[which].max(initial=0.0))


def _emulated(ids: np.ndarray, weights: Any, config: Config, precision: str, toom_cook: bool = False) -> np.ndarray:
    if precision == "fp32":
        return network.forward(ids, weights, config, np.float32)
    return emulated.logits(ids, weights, config, precision, toom_cook=toom_cook)


def _show(row: Row, one: dict[str, Any]) -> None:
    wrong = ", ".join(
        f"{name}{' ' + of['layer'] if 'layer' in of else ''} {of['least']:.3g}/{of['least_of_samples']:.3g} "
        f"({of['samples_above']:.1%})"
        for name, of in one["mutants"].items()
    )
    print(
        f"{row.name:11} {one['weights']:24} right at most {one['largest']:.2f} of {one['bound']:g}, "
        f"rms {one['rms']:.2f}, relative {one['relative']:.1e}; "
        f"wrong at least (an input / {SAMPLE}): {wrong}; {one['seconds']:.1f} s",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--levels", metavar="lK,...", help=f"or one precision, as l14-bf16 (default {','.join(LEVELS)})")
    add("--inputs", type=int, default=8192, metavar="N", help="inputs per level, precision and weights (default 8192)")
    add("--seeds", default="0,1", metavar="S,...", help="seeds of the random weights (default 0,1)")
    add("--batch", type=int, metavar="B", help="inputs per batch (default: each level's own)")
    add("--at-once", type=int, default=128, metavar="N", help="the reference's batch on a GPU (default 128)")
    add("--emulated", action="store_true", help="emulate the kernels' rounding in NumPy; needs no GPU")
    add("--tiny", action="store_true", help="only show that it runs, with the smallest network")
    add("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for all levels")
    options = parser.parse_args(argv)
    options.size = replace(TINY, channels=16, units=32) if options.tiny else SMALL
    try:
        chosen = rows(options.levels)
        options.seeds = [int(seed) for seed in options.seeds.split(",")]
        if options.inputs < SAMPLE:
            raise ValueError(f"--inputs {options.inputs}: need at least {SAMPLE}")
    except ValueError as error:
        parser.error(str(error))
    chosen.sort(key=lambda row: row.level.name != "l17")  # its logits stand in for others' below
    begun = time.perf_counter()
    try:
        found = measure(options, chosen)
    except device.DeviceError as error:
        print(f"validation: {error}", file=sys.stderr)
        return 2
    totals: dict[str, int] = {}
    for one in found:
        totals[one["precision"]] = totals.get(one["precision"], 0) + one["inputs"]
    print("; ".join(f"{name}: {count:,} inputs" for name, count in totals.items()), end="; ")
    print(f"{time.perf_counter() - begun:.0f} s")
    here = machine.describe()
    whole = options.levels is None and not options.tiny and not options.emulated
    if (folder := options.results_dir or (raw.RESULTS if whole else None)) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        document = {"validation": found, "emulated": options.emulated, "config": options.size.to_dict()}
        document |= {"kinds": KINDS, "machine": here, "commit": machine.commit()}
        raw.write(folder / f"{machine.name(here)}-validation.json", "validation", document)
    return 0 if all(one["within"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
