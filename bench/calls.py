"""Time calls from Python: of operators and prepared layers on a GPU, from arrays of several libraries.

What counts is how long the host takes until a call returns, not how long the GPU computes: inputs are few and small.
Beside them, Numba's own launch of a kernel, and PyTorch's functions. Each call is checked first. --json FILE writes the
raw result. Exit status: 0 measured, 1 a result is wrong, 2 unusable options.

    python bench/calls.py --json bench/results/MACHINE-calls.json
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cases
import numpy as np
import raw
from numba import cuda

from charcnn import catalog, ops
from charcnn.config import SMALL
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.layers import Conv1d, Linear
from charcnn.model import params
from charcnn.ops.common.arrays import pack
from charcnn.ops.layers import LAYERS
from charcnn.ops.operator_row import loaded

OPERATORS = (
    "relu_naive", "tanh_naive", "softmax_naive", "argmax_naive", "maxpool1d_naive", "layernorm_naive",
    "layernorm_relu_naive", "collapse_naive", "one_hot_naive", "conv1d_naive", "conv1d_relu_naive",
    "conv1d_relu_maxpool1d_naive", "linear_naive", "linear_relu_naive", "linear_relu_linear_naive",
    "conv1d_nlc_coalesced", "conv1d_relu_nlc_double_buffered", "linear_relu_nlc_double_buffered",
    "one_hot_conv1d_nlc_gather", "conv2d_relu_naive", "maxpool2d_naive", "conv1d_relu_nlc_mma", "conv1d_nlc_winograd",
)  # fmt: skip
INPUTS, ROUNDS, CALLS = 2, 10, 100
"""Inputs of a call, rounds in an order drawn for each, and calls of one: of all of them the median counts."""


def seconds(call: Callable[[], Any]) -> list[float]:
    """What each call of a round takes until it returns; the GPU is waited for before and after."""
    cuda.synchronize()
    found = []
    for _ in range(CALLS):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    cuda.synchronize()
    return found


def libraries() -> dict[str, Callable[[np.ndarray], Any]]:
    """How an array comes to the GPU, by whose it is then."""
    found: dict[str, Callable[[np.ndarray], Any]] = {"Numba": device.to_device}
    if find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            found["PyTorch"] = lambda array: torch.as_tensor(array, device="cuda")
    if find_spec("cupy"):
        import cupy

        found["CuPy"] = cupy.asarray
    return found


@dataclass
class Row:
    """A call that passed its check, or did not."""

    name: str
    arrays: str
    kind: str
    call: Callable[[], Any]
    error: float = 0.0
    within_tolerance: bool = True

    def __post_init__(self) -> None:
        for _ in range(3):
            self.call()
        self.times: list[float] = []

    def result(self) -> dict[str, Any]:
        """The raw result's."""
        took = 1e6 * statistics.median(self.times)
        print(f"{self.name:44} {self.arrays:8} {took:8.2f} µs", flush=True)
        named = {name: getattr(self, name) for name in ("name", "arrays", "kind", "error", "within_tolerance")}
        return {**named, "microseconds": took}


def operators(names: Sequence[str]) -> Iterator[Row]:
    """Operators with `out=`, and once without."""
    for name in names:
        variant = next(one for one in catalog.VARIANTS if one.function == name)
        operator, launcher = catalog.operator(variant.operator), getattr(ops, name)
        layer = cases.LAYERS[variant.operator][-1].name
        case = cases.case(variant.operator, layer, SMALL, INPUTS)
        exact = [array.astype(np.float64) if array.dtype == np.float32 else array for array in case.args]
        right = np.asarray(operator.reference(*exact, *case.extra, **case.options))
        for library, to_gpu in libraries().items():
            args, out = (
                [*map(to_gpu, case.args)],
                to_gpu(np.zeros(right.shape, case.dtype if right.dtype.kind == "f" else right.dtype)),
            )

            def call(args=args, out=out, launcher=launcher, case=case) -> Any:  # type: ignore[no-untyped-def]
                return launcher(*args, *case.extra, **case.options, out=out)

            error = 0.0
            for _ in range(3):  # the first takes the whole way
                device.as_device_array(out, 0).copy_to_device(np.full(right.shape, 7, out_dtype(out)))
                call()
                error = max(error, cases.error(device.as_device_array(out, 0).copy_to_host(), right))
            within = error <= catalog.tolerance(variant)
            yield Row(name, library, "operator", call, error, within)
        if name == names[0]:
            args = [*map(device.to_device, case.args)]
            yield Row(f"{name}, no out=", "Numba", "operator", partial(launcher, *args))


def out_dtype(array: Any) -> np.dtype:
    """NumPy's, of an array on the GPU."""
    return np.dtype(device.as_device_array(array, 0).dtype)


def layers() -> Iterator[Row]:
    """Prepared layers of conv3 and fc2."""
    weights = params.init(SMALL, 0)
    for layer in LAYERS:
        if layer.device != "cuda" or not layer.technique:
            continue
        for name, pattern in (("conv3", (Conv1d(SMALL.channels, 3),)), ("fc2", (Linear(SMALL.units),))):
            precision = "fp16" if "fp16" in layer.precisions else layer.precisions[0]
            if not layer.takes(pattern, precision):
                continue
            given = {
                part: pack(array) if (array := weights[f"{name}.{part}"]).ndim > 1 else array
                for part in ("weight", "bias")
            }
            how = {} if layer.precisions == ("fp32",) else {"precision": precision}
            made: Any = loaded(f"charcnn.ops.{layer.home}", layer.name)(pattern, given, **how)
            shape = (INPUTS, SMALL.block_lengths[1], SMALL.channels) if name == "conv3" else (INPUTS, 1, SMALL.units)
            dtype = np.float16 if how else np.float32
            x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
            right = expected(x.astype(np.float64), given).reshape(made.out_shape(x.shape))
            for library, to_gpu in libraries().items():
                features, out = to_gpu(x), to_gpu(np.zeros(made.out_shape(x.shape), dtype))

                def call(made=made, features=features, out=out) -> Any:  # type: ignore[no-untyped-def]
                    return made.apply(features, out=out)

                error = 0.0
                for _ in range(4):
                    device.as_device_array(out, 0).copy_to_device(np.full(right.shape, 7, dtype))
                    call()
                    error = max(
                        error, cases.error(device.as_device_array(out, 0).copy_to_host().astype(np.float64), right)
                    )
                limit = 2e-3 if how else 4e-6
                yield Row(f"{layer.name} {name}", library, "layer", call, error, error <= limit)


def expected(x: np.ndarray, given: dict[str, np.ndarray]) -> np.ndarray:
    """Of a convolution or linear layer, in float64."""
    weight, bias = given["weight"].astype(np.float64), given["bias"].astype(np.float64)
    if weight.ndim == 2:
        return x @ weight + bias
    taps = weight.shape[0]
    length = x.shape[1] - taps + 1
    return sum(x[:, k : k + length] @ weight[k] for k in range(taps)) + bias


@cuda.jit
def _three(x, y, z):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] + y[i]


def others() -> Iterator[Row]:
    """Numba's own launch, and PyTorch's functions."""
    one = device.to_device(np.zeros(128, np.float32))
    numba_launch = _three[1, 128]
    yield Row("a kernel, launched by Numba", "Numba", "peer", lambda: numba_launch(one, one, one))
    if "PyTorch" not in libraries():
        return
    import torch
    from torch.nn import functional

    torch.backends.cuda.matmul.allow_tf32 = False
    draw = cases.Draw(SMALL, INPUTS)
    x, weight, bias = (torch.as_tensor(array, device="cuda") for array in draw.conv1d(3).args)
    y = torch.empty_like(x)
    features, rows, offset = (torch.as_tensor(array, device="cuda") for array in draw.linear(2).args)
    with torch.no_grad():
        yield Row("torch.clamp(out=)", "PyTorch", "peer", lambda: torch.clamp(x, min=0, out=y))
        yield Row("torch.relu", "PyTorch", "peer", lambda: torch.relu(x))
        yield Row("torch conv1d", "PyTorch", "peer", lambda: functional.conv1d(x, weight, bias))
        yield Row("torch linear", "PyTorch", "peer", lambda: functional.linear(features, rows, offset))
        yield Row("torch max_pool1d", "PyTorch", "peer", lambda: functional.max_pool1d(x, 3))
        yield Row("torch softmax", "PyTorch", "peer", lambda: torch.softmax(features, 1))


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--operators", metavar="NAME,...", help="default: some 20 of charcnn.ops")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw result")
    options = parser.parse_args(argv)
    if device.SIMULATED or not machine.describe()["gpus"]:
        parser.error("there is no GPU: the simulator's calls say nothing of one")
    names = options.operators.split(",") if options.operators else OPERATORS
    known = {one.function for one in catalog.VARIANTS if one.device == "cuda"}
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--operators {unknown[0]}: need functions of charcnn.ops that run on a GPU")
    every = [*others(), *operators(names), *layers()]
    order = random.Random(0)
    for _ in range(ROUNDS):
        for one in order.sample(every, len(every)):
            one.times += seconds(one.call)
    rows = [one.result() for one in every]
    wrong = [one for one in every if not one.within_tolerance]
    for one in wrong:
        print(f"{one.name} from {one.arrays} arrays is wrong: relative error {one.error:.1e}")
    here = machine.describe()
    if options.json:
        result = {
            "calls": rows,
            "inputs": INPUTS,
            "median_of": ROUNDS * CALLS,
            "machine": here,
            "commit": machine.commit(),
        }
        raw.write(options.json, "calls", result)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
