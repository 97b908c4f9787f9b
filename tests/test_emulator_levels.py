"""The emulator finds nothing in the levels that it runs, by any schedule."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import part

from charcnn import catalog
from charcnn.config import TINY_MATRICES
from charcnn.gpu import device
from charcnn.model import params

if device.SIMULATED:
    from charcnn.gpu import emulator

CASES = [(row.name, seed) for seed in range(20) for row in catalog.LEVELS if row.tensor_cores]


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to emulate")
@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "seed"), CASES)
def test_a_level(name, seed, request):
    if request.config.getoption("--turns") and CASES.index((name, seed)) != part(len(CASES)):
        pytest.skip("another commit's turn")
    ids = np.random.default_rng(seed).integers(0, TINY_MATRICES.alphabet, (2, TINY_MATRICES.length)).astype(np.uint8)
    with emulator.checking(seed) as findings:
        level = catalog.level(name)
        run = level.module.build(level.taken(params.init(TINY_MATRICES, 0)), TINY_MATRICES, batch=2, streams=1)
        assert np.isfinite(run(ids)).all()
    assert findings == []
