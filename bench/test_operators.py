"""Every variant of every operator: check against the float64 reference, then time."""

from __future__ import annotations

import time
from typing import Any

import cases
import numpy as np
import pytest
from numba import cuda

from charcnn import catalog, device

BATCH = {"cpu": 1, "cuda": 128}
TINY_BATCH = 2
ROUND = 0.02
"""Seconds that one round should take; short calls are repeated within it."""
BUDGET = 1.0
"""Seconds to spend on all rounds of one row."""


def gpu_clock() -> float:
    """The time after the GPU has finished all work given to it so far."""
    cuda.synchronize()
    return time.perf_counter()


CLOCKS = {"cpu": time.perf_counter, "cuda": gpu_clock}


def _rows() -> list[Any]:
    return [
        pytest.param(
            variant,
            layer.name,
            id=f"{variant.name}-{layer.name}",
            marks=pytest.mark.benchmark(group=f"{variant.operator} {layer.name}", timer=CLOCKS[variant.device]),
        )
        for variant in catalog.VARIANTS
        for layer in cases.LAYERS[variant.operator]
    ]


@pytest.mark.parametrize(("variant", "layer"), _rows())
def test_operator(variant: catalog.Variant, layer: str, plan: Any, benchmark: Any) -> None:
    operator = catalog.operator(variant.operator)
    batch = TINY_BATCH if plan.tiny else BATCH[variant.device]
    case = cases.case(variant.operator, layer, plan.config, batch)
    sample = sorted({0, batch // 2, batch - 1})
    exact = [array.astype(np.float64) if array.dtype == np.float32 else array for array in case.args]
    expected = operator.reference(exact[0][sample], *exact[1:], *case.extra)

    kind = np.float32 if np.issubdtype(expected.dtype, np.floating) else expected.dtype
    poison = np.full((batch, *expected.shape[1:]), np.nan if kind == np.float32 else np.iinfo(kind).max, kind)
    if variant.device == "cuda":
        args, out = [device.to_device(array) for array in case.args], device.to_device(poison)
    else:
        args, out = list(case.args), poison.copy()

    def call() -> None:
        variant.launcher(*args, *case.extra, out=out)

    call()
    result = out.copy_to_host() if variant.device == "cuda" else out
    error = cases.error(result[sample], expected)
    assert np.isfinite(result).all(), f"{variant.name} left outputs unwritten, or not finite"
    assert error <= operator.tolerance, f"{variant.name} is wrong: relative error {error:.1e}"

    rounds, iterations = _effort(call, CLOCKS[variant.device], plan.tiny)
    benchmark.pedantic(call, rounds=rounds, iterations=iterations)
    if benchmark.stats is None:  # --benchmark-disable: checked only
        return
    seconds = benchmark.stats.stats.median
    moved = sum(array.nbytes for array in case.args) + result.nbytes
    benchmark.extra_info.update(
        operator=variant.operator,
        technique=variant.technique,
        device=variant.device,
        layer=layer,
        shapes=[list(array.shape) for array in case.args],
        data=cases.DATA,
        batch=batch,
        flop=case.flops,
        bytes=moved,
        inputs_per_second=batch / seconds,
        **cases.rate(seconds, case.flops, moved),
        error=error,
        tolerance=operator.tolerance,
    )


def _effort(call: Any, clock: Any, tiny: bool) -> tuple[int, int]:
    """(rounds, calls a round) that fit the budget, from one more call, after the one that compiled."""
    if tiny:
        return 1, 1
    start = clock()
    call()
    seconds = max(clock() - start, 1e-7)
    iterations = max(1, min(1000, int(ROUND / seconds)))
    return max(3, min(25, int(BUDGET / (seconds * iterations)))), iterations
