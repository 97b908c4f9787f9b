"""docs/photographs.md run as it stands, and its functions on photographs by every technique, beside PyTorch."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import by_turns

from charcnn import ops
from charcnn.catalog import FLOAT32
from charcnn.gpu import device

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
f = torch.nn.functional

PAGE = Path(__file__).parents[1] / "docs" / "photographs.md"
SIDE = 9 if device.SIMULATED else 120


def relu(x):
    return ops.relu_loops(np.ascontiguousarray(x))


TECHNIQUES = {
    "loops": (lambda *args, **moves: relu(ops.conv2d_loops(*args, **moves)), ops.conv2d_loops, relu),
    "cpu_gemm": (ops.conv2d_relu_cpu_gemm, ops.conv2d_cpu_gemm, relu),
    "naive": (ops.conv2d_relu_naive, ops.conv2d_naive, ops.relu_naive),
}
"""conv2d_relu, conv2d and relu."""


@pytest.fixture(scope="module")
def page():
    """Every name that the page's examples leave."""
    pytest.importorskip("skimage", reason="scikit-image is not installed: pip install -e '.[photographs]'")
    names = {}
    for number, example in enumerate(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)):
        exec(compile(example, f"{PAGE.name}, example {number + 1}", "exec"), names)
    return names


def crops():
    """Photographs as they come, whole where nothing is simulated: a portrait, a temple, a flower."""
    data = pytest.importorskip("skimage.data", reason="scikit-image is not installed")
    samples = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    for photo in (data.astronaut(), *map(samples.load_sample_image, ("china.jpg", "flower.jpg"))):
        top, left = photo.shape[0] // 3, photo.shape[1] // 3
        cut = photo[top : top + SIDE, left : left + SIDE + 2]
        assert cut.std() > 1, "a piece of one colour shows nothing"
        yield np.ascontiguousarray(cut.transpose(2, 0, 1)[None], np.float32) / np.float32(255)


def close(out, expected):
    expected = expected.numpy()
    assert out.shape == expected.shape
    assert out.dtype == np.float32
    assert np.linalg.norm(out - expected) <= FLOAT32 * np.linalg.norm(expected)


def double(array):
    return torch.from_numpy(np.asarray(array, np.float64))


def filtered(x, square):
    """PyTorch's result."""
    side, channels = len(square) // 2, x.shape[1]
    padded = f.pad(double(x), (side,) * 4, mode="replicate")
    return f.conv2d(padded, double(square).expand(channels, 1, *square.shape), groups=channels)


def edges(x):
    grey = (double(x) * torch.tensor([0.299, 0.587, 0.114]).double().view(1, 3, 1, 1)).sum(1, keepdim=True)
    row = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).double()
    slopes = f.conv2d(grey, torch.stack((row, row.T))[:, None])
    return torch.linalg.vector_norm(slopes, dim=1)


def normalised(x, weight, gamma, beta, mean, variance, **moves):
    """A convolution, and the batch normalisation that the page folds into it."""
    y = f.conv2d(x, double(weight), **moves)
    return f.batch_norm(y, *map(double, (mean, variance, gamma, beta)))


def resnet_block(x, first, second):
    y = f.relu(normalised(x, *first, padding=1))
    return f.relu(normalised(y, *second, padding=1) + x)


@by_turns
def test_the_page(page):
    x = page["x"]
    np.testing.assert_allclose(x, page["photo"].transpose(2, 0, 1)[None] / 255, rtol=1e-7)
    close(page["by_box"], filtered(x, page["box"]))
    soft = filtered(x, page["gaussian"](2))
    close(page["by_gaussian"], soft)
    close(page["by_all_cores"], soft)
    close(page["steep"], edges(x))
    features = f.relu(normalised(double(x), *page["stem"], stride=2, padding=1))
    close(page["features"], features)
    close(page["block"], resnet_block(double(page["features"]), page["first"], page["second"]))


def test_what_the_filters_do(page):
    """A blur keeps the mean and takes contrast; edges are where the photograph is steep."""
    x, soft = page["x"], page["by_gaussian"]
    assert abs(soft.mean() - x.mean()) < 2e-3
    assert soft.std() < x.std()
    assert np.abs(np.diff(soft)).mean() < 0.5 * np.abs(np.diff(x)).mean()
    flat = np.full_like(x[:, :, :8, :8], 0.5)
    np.testing.assert_allclose(page["filtered"](ops.conv2d_loops, flat, page["box"]), flat, rtol=1e-6)
    assert np.abs(page["edges"](ops.conv2d_loops, flat)).max() < 1e-6


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_every_technique(page, technique):
    conv2d_relu, conv2d, last = TECHNIQUES[technique]
    for x in crops():
        given, square = x, page["gaussian"](1)
        if technique == "cpu_gemm":  # as the page does
            with pytest.raises(ValueError, match="a group has one input channel"):
                page["filtered"](conv2d, x, square)
            given = x.reshape(3, 1, *x.shape[2:])
        close(page["filtered"](conv2d, given, square).reshape(x.shape), filtered(x, square))
        close(page["edges"](conv2d, x), edges(x))
        weights = page["drawn"](3, 3), page["drawn"](3, 3)
        block = page["resnet_block"](conv2d_relu, conv2d, last, x, *(page["folded"](*one) for one in weights))
        close(block, resnet_block(double(x), *weights))
