"""Levels at the network's own sizes against PyTorch's modules, written down apart from all that is ours."""

import numpy as np
import pytest
from test_levels import LEVELS, MORE, random_ids

from charcnn.config import SMALL
from charcnn.gpu import device
from charcnn.model import params
from charcnn.model.validation import expected as expected_of
from charcnn.model.validation import in_sigmas

torch = pytest.importorskip("torch", reason="PyTorch is not installed: no second oracle")
nn = torch.nn

ONES = [name if name in ("l0", "l16") else pytest.param(name, marks=MORE) for name in LEVELS]


@pytest.mark.parametrize("name", ["l0"] if device.SIMULATED else ONES)
def test_small_against_pytorch(name):
    weights, ids = LEVELS[name].taken(params.init(SMALL, seed=5)), random_ids(2, SMALL)

    def conv_block(block, pool):
        layers = [nn.Conv1d(SMALL.in_channels(block), 256, SMALL.kernel_sizes[block - 1])]
        if f"norm{block}.weight" in weights:
            layers.append(nn.LayerNorm([256, SMALL.conv_lengths[block - 1]]))
        return [*layers, nn.ReLU(), *([nn.MaxPool1d(3)] if pool else [])]

    blocks = [layer for block in range(1, 7) for layer in conv_block(block, block in (1, 2, 6))]
    model = nn.Sequential(
        *blocks, nn.Flatten(), nn.Linear(8704, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4)
    ).double()
    owners = [layer for layer in model if list(layer.parameters())]
    names = list(dict.fromkeys(key.partition(".")[0] for key in weights))
    for owner, key in zip(owners, names, strict=True):
        owner.load_state_dict({part: torch.from_numpy(weights[f"{key}.{part}"]) for part in ("weight", "bias")})
    dense = nn.functional.one_hot(torch.from_numpy(ids.astype(np.int64)), 71)[..., :70].permute(0, 2, 1).double()
    with torch.no_grad():
        expected = model(dense).numpy()
    logits = LEVELS[name].module.build(weights, SMALL)(ids)
    rounding = LEVELS[name].rounding()
    sigma = expected_of(ids, weights, SMALL, rounding)[1]
    assert in_sigmas(logits, expected, sigma).max() <= rounding.bound
