"""The network's sizes."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charcnn.config import SMALL, TINY, Config


def test_small_is_the_papers_small_network():
    assert SMALL.conv_lengths == (1008, 330, 108, 106, 104, 102)
    assert SMALL.block_lengths == (336, 110, 108, 106, 104, 34)
    assert SMALL.features == 8704
    assert SMALL.parameters == 11_908_100
    assert round(SMALL.flops / 1e6, 1) == 740.7
    assert [SMALL.in_channels(block) for block in (1, 2, 6)] == [70, 256, 256]


def test_parameters_stand_in_the_order_of_params_bin():
    shapes = {
        "conv1.weight": (256, 70, 7),
        "conv1.bias": (256,),
        "norm1.weight": (256, 1008),
        "norm1.bias": (256, 1008),
        "conv2.weight": (256, 256, 7),
        "conv2.bias": (256,),
        "conv3.weight": (256, 256, 3),
        "conv3.bias": (256,),
        "conv4.weight": (256, 256, 3),
        "conv4.bias": (256,),
        "conv5.weight": (256, 256, 3),
        "conv5.bias": (256,),
        "conv6.weight": (256, 256, 3),
        "conv6.bias": (256,),
        "norm6.weight": (256, 102),
        "norm6.bias": (256, 102),
        "fc1.weight": (1024, 8704),
        "fc1.bias": (1024,),
        "fc2.weight": (1024, 1024),
        "fc2.bias": (1024,),
        "fc3.weight": (4, 1024),
        "fc3.bias": (4,),
    }
    assert list(SMALL.parameter_shapes.items()) == list(shapes.items())


def test_tiny_is_the_shortest_that_the_chain_admits():
    assert TINY.length == 123
    assert TINY.block_lengths[-1] == 1
    with pytest.raises(ValueError, match=r"^length=122: pool6 gets 2 positions: need at least 3"):
        Config(length=122)


def test_the_papers_other_networks_are_one_config_away():
    large = Config(channels=1024, units=2048)
    assert large.features == 34 * 1024
    assert large.parameter_shapes["fc1.weight"] == (2048, 34816)
    plain = Config(layernorm=False)
    assert not any(name.startswith("norm") for name in plain.parameter_shapes)
    assert plain.parameters == SMALL.parameters - 2 * 256 * (1008 + 102)
    assert plain.flops == SMALL.flops


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 0}, "length=0"),
        ({"length": 27_000_000}, "^length=27000000: need at most 1048576: 1,024 texts are 1 GiB of token ids then"),
        ({"length": 6}, "^length=6: conv1 gets 6 positions: need at least 7"),
        ({"length": 8}, "length=8: pool1 gets 2 positions"),
        ({"length": 20}, "length=20: conv2 gets 4 positions"),
        ({"kernel_sizes": (7, 7, 3, 3, 200, 3)}, "conv5 gets 106 positions: need at least 200"),
        ({"channels": -1}, "channels=-1"),
        ({"channels": 2.0}, "channels=2.0"),
        ({"units": True}, "units=True"),
        ({"units": None}, "units=None"),
        ({"classes": "4"}, "classes='4'"),
        ({"alphabet": 256}, "alphabet=256"),
        ({"layernorm": 1}, "layernorm=1"),
        ({"kernel_sizes": (7, 7, 3)}, "kernel_sizes"),
        ({"kernel_sizes": 7}, "kernel_sizes"),
        ({"kernel_sizes": (7, 7, 3, 0, 3, 3)}, r"kernel_sizes\[3\] \(conv_block_4\)=0"),
    ],
)
def test_what_does_not_fit_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**fields)


@given(
    st.integers(1, 400),
    st.lists(st.integers(1, 9), min_size=6, max_size=6),
    st.integers(1, 5),
    st.booleans(),
)
def test_a_config_that_constructs_has_positions_everywhere_and_survives_json(length, kernel_sizes, size, layernorm):
    try:
        config = Config(length, size + 1, size, tuple(kernel_sizes), size + 2, size + 3, layernorm)
    except ValueError as error:
        assert " positions: need at least " in str(error)  # noqa: PT017
        return
    assert min(config.conv_lengths + config.block_lengths) >= 1
    assert config.parameters == sum(math.prod(shape) for shape in config.parameter_shapes.values())
    assert Config(**json.loads(json.dumps(config.to_dict()))) == config
    assert hash(config) == hash(Config(**config.to_dict()))
