"""Every level: check its logits against the float64 reference, then time it from token ids to logits."""

from __future__ import annotations

import inspect
import time
from typing import Any

import cases
import energy
import numpy as np
import pytest
from clock import HOST_CLOCK

from charcnn import catalog
from charcnn.gpu import device
from charcnn.model import params, validation
from charcnn.ops.common.cpu_dot import DOT_FORMATS, missing
from charcnn.runtime.monitor import Monitor
from charcnn.text import encodings
from charcnn.text.texts import sample

LONG_ENOUGH = 0.75
"""Seconds that one run should take at least: inputs are doubled until it does."""
MOST_INPUTS = 1 << 20
ROUNDS = 3


@pytest.mark.benchmark(group="levels", timer=HOST_CLOCK)
@pytest.mark.parametrize("level", catalog.LEVELS, ids=lambda level: level.name)
def test_level(level: catalog.Level, plan: Any, benchmark: Any) -> None:
    config = plan.config
    weights = level.taken(params.init(config, seed=0))
    shipped = sample().texts
    texts = encodings.encode(shipped, encodings.ENCODINGS["crepe"], config.length)

    if level.device == "cpu" and level.precision(None) in DOT_FORMATS and missing(level.precision(None)):
        pytest.skip(f"this processor lacks {missing(level.precision(None))}")
    build, monitor = level.module.build, Monitor()
    gpus = device.choose(plan.gpus) if level.device == "cuda" else None
    run = build(weights, config, gpus=gpus, monitor=monitor)
    if not plan.tiny:
        run(texts[:1])  # compiles and allocates
    inputs = 2 if plan.tiny else _long_enough(run, texts)

    ids = _drawn(texts, inputs)
    logits = run(ids)
    checked = sorted({0, inputs // 2, inputs - 1})
    rounding = level.rounding()
    expected, sigma = validation.expected(ids[checked], weights, config, rounding)
    sigmas = float(validation.in_sigmas(logits[checked], expected, sigma).max())
    assert np.isfinite(logits).all(), f"{level.name} left logits that are not finite"
    assert sigmas <= rounding.bound, (
        f"{level.name} is wrong: {sigmas:.2g} sigma of rounding, {rounding.bound:g} allowed"
    )

    if benchmark.disabled:  # checked only; the plugin warns of a test that hands it nothing
        benchmark.pedantic(lambda: None)
        return
    monitor.seconds.clear()
    rounds = 1 if plan.tiny else ROUNDS
    HOST_CLOCK.inputs = inputs
    benchmark.pedantic(run, args=(ids,), rounds=rounds)
    seconds = inputs * benchmark.stats.stats.median
    stages = {stage: spent / rounds for stage, spent in monitor.seconds.items()}

    def start(times: int) -> Any:
        for _ in range(times):
            run(ids)
        return energy.done

    (drawn,) = plan.meters[level.device].by_turns([energy.Work(start, inputs)])
    benchmark.extra_info.update(
        level=level.name,
        title=level.title,
        device=level.device,
        config=config.to_dict(),
        data=f"the {len(shipped)} sample texts, repeated; random weights, seed 0",
        inputs=inputs,
        batch=inspect.signature(build).parameters["batch"].default,
        ranks=1,
        gpus=0 if gpus is None else len(gpus),
        inputs_per_second=inputs / seconds,
        gflop_per_second=inputs * config.flops / seconds / 1e9,
        bytes=ids.nbytes + logits.nbytes,
        **({"gpu_memory_bytes": max(monitor.memory.values())} if monitor.memory else {}),
        stages=stages,
        **drawn,
        error=cases.error(logits[checked], expected),
        sigmas=sigmas,
        bound=rounding.bound,
    )


def _drawn(texts: np.ndarray, inputs: int) -> np.ndarray:
    """So many of the sample's token ids, again and again."""
    return texts[np.arange(inputs) % len(texts)]


def _long_enough(run: Any, texts: np.ndarray) -> int:
    """How many inputs one run of the wanted length takes; the first run of so many may have compiled for them."""
    inputs = 1
    while inputs < MOST_INPUTS:
        ids = _drawn(texts, inputs)
        if _seconds(run, ids) >= LONG_ENOUGH and _seconds(run, ids) >= LONG_ENOUGH:
            break
        inputs *= 2
    return inputs


def _seconds(run: Any, ids: np.ndarray) -> float:
    start = time.perf_counter()
    run(ids)
    return time.perf_counter() - start
