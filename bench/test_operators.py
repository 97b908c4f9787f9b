"""Every variant of every operator: check against the float64 reference, then time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cases
import numpy as np
import pytest
from clock import CLOCKS

from charcnn import catalog
from charcnn.gpu import device
from charcnn.ops.common.sparse import pruned

BATCH = {"cpu": 1, "cuda": 128}
TINY_BATCH = 2
ROUND = 0.02
"""Seconds that one round should take; short calls are repeated within it."""
BUDGET = 0.4
"""Seconds to spend on all rounds of one row."""


def _rows() -> list[Any]:
    return [
        pytest.param(
            variant,
            layer.name,
            id=f"{variant.name}-{layer.name}",
            marks=pytest.mark.benchmark(group=layer.name, timer=CLOCKS[variant.device]),
        )
        for variant in catalog.VARIANTS
        for layer in cases.LAYERS[variant.operator]
    ]


@pytest.mark.parametrize(("variant", "layer"), _rows())
def test_operator(variant: catalog.Variant, layer: str, plan: Any, benchmark: Any) -> None:
    operator = catalog.operator(variant.operator)
    batch = TINY_BATCH if plan.tiny else BATCH[variant.device]
    case = cases.case(variant.operator, layer, plan.config, batch)
    if variant.sparse:
        x, weight, *rest = case.args
        case = replace(case, args=(x, pruned(weight, -2), *rest))
    summed = bool(operator.results) or not case.batched  # gradients of parameters, over the inputs; packed inputs
    sample = range(batch) if summed else sorted({0, batch // 2, batch - 1})
    exact = [array.astype(np.float64) if array.dtype == np.float32 else array for array in case.args]
    exact = [array[sample] if i < case.batched else array for i, array in enumerate(exact)]
    expected = operator.reference(*exact, *case.extra, **case.options)

    args, right = list(case.args), cases.arrays(expected)
    kinds = case.dtype, *[np.float32 if summed else np.float64] * (len(right) - 1)
    out = [_poison(array, len(array) if summed else batch, kind) for array, kind in zip(right, kinds, strict=True)]
    if variant.device == "cuda":
        args, out = [device.to_device(array) for array in args], [device.to_device(array) for array in out]
    options = {**case.options, "out": tuple(out) if isinstance(expected, tuple) else out[0]}

    def call() -> None:
        variant.launcher(*args, *case.extra, **options)

    call()
    results = [array.copy_to_host() for array in out] if variant.device == "cuda" else out
    error = max(
        cases.error(result if summed else result[sample], right)
        for result, right in zip(results, cases.arrays(expected), strict=True)
    )
    assert all(np.isfinite(result).all() for result in results), f"{variant.name} left outputs unwritten, or not finite"
    tolerance = catalog.tolerance(variant)
    assert error <= tolerance, f"{variant.name} is wrong: relative error {error:.1e}"

    if benchmark.disabled:  # checked only; the plugin warns of a test that hands it nothing
        benchmark.pedantic(lambda: None)
        return
    clock = CLOCKS[variant.device]
    clock.inputs = batch
    rounds, iterations = _effort(call, clock.now, plan.tiny)
    benchmark.pedantic(call, rounds=rounds, iterations=iterations)
    seconds = batch * benchmark.stats.stats.median
    moved = sum(array.nbytes for array in (*case.args, *results))
    benchmark.extra_info.update(
        operator=variant.operator,
        technique=variant.label,
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
        tolerance=tolerance,
    )


def _poison(expected: np.ndarray, batch: int, dtype: type) -> np.ndarray:
    """An output for the whole batch that no result looks like, of this dtype where it is no index."""
    floats = np.issubdtype(expected.dtype, np.floating)
    kind = np.dtype(dtype) if floats else expected.dtype
    return np.full((batch, *expected.shape[1:]), np.nan if floats else np.iinfo(kind).max, kind)


def _effort(call: Any, clock: Any, tiny: bool) -> tuple[int, int]:
    """(rounds, calls a round) that fit the budget, from one more call, after the one that compiled."""
    if tiny:
        return 1, 1
    start = clock()
    call()
    seconds = max(clock() - start, 1e-7)
    iterations = max(1, min(1000, int(ROUND / seconds)))
    return max(3, min(25, int(BUDGET / (seconds * iterations)))), iterations
