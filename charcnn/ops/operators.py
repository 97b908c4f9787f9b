"""The table of operators. Parameters stand in a reference's signature, what shapes it takes and gives in its check."""

from __future__ import annotations

from dataclasses import replace

from charcnn.ops.operator_row import EXACT, FLOAT32, Operator

CHAIN = "conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat"
"""The strong fusion of blocks 3 to 6."""

IMAGE_CHAIN = "conv2d_relu_maxpool2d_conv2d_relu_maxpool2d"
"""The strong fusion of AlexNet's first two layers."""

PRODUCT_GRADIENTS = ("dx", "dweight", "dbias")
"""What the operator of a product's gradients gives."""

NORM_GRADIENTS = ("dx", "dgamma", "dbeta")
"""What that of a normalisation's gives."""

POINTWISE = ("relu", "tanh", "gelu", "sigmoid")


def _both(axes: str, of: Operator) -> tuple[Operator, Operator]:
    """The operator on channels-first features, and on channels-last ones of these axes."""
    return of, replace(of, axes=axes, shape_check=of.shape_check and f"{of.shape_check}_{axes}")


OPERATORS = (
    *_both("nlc", Operator("one_hot", EXACT)),
    *_both("nlc", Operator("conv1d", FLOAT32, epilogue="")),
    *_both("nlc", Operator("conv1d_relu", FLOAT32, "conv1d", "relu")),
    Operator("layernorm", FLOAT32, in_place=True),
    Operator("relu", EXACT, "relu", "relu", in_place=True),
    Operator("maxpool1d", EXACT, epilogue=""),
    Operator("collapse", EXACT),
    *_both("nlc", Operator("linear", FLOAT32, epilogue="")),
    *_both("nlc", Operator("linear_relu", FLOAT32, "linear", "relu")),
    *_both("nlc", Operator("conv1d_stat", FLOAT32, "conv1d", stat=True)),
    Operator("layernorm_relu", FLOAT32, in_place=True),
    Operator("relu_maxpool1d", EXACT, "maxpool1d", "relu"),
    *_both("nlc", Operator("conv1d_relu_maxpool1d", FLOAT32)),
    *_both("nlc", Operator("layernorm_relu_maxpool1d", FLOAT32)),
    Operator(CHAIN, FLOAT32, None, stat=True),
    Operator("linear_relu_linear", FLOAT32, "two_linears", "relu"),
    *_both("nlc", Operator("one_hot_conv1d", FLOAT32)),
    Operator("one_hot_conv1d_stat", FLOAT32, dtypes=("float64",), axes="nlc"),
    Operator("one_hot_conv1d_relu_maxpool1d", FLOAT32, axes="nlc"),
    Operator("one_hot_conv1d_layernorm_relu_maxpool1d", FLOAT32, axes="nlc"),
    Operator("softmax", FLOAT32),
    Operator("argmax", EXACT, dtypes=("int64",)),
    Operator("embedding", FLOAT32),
    Operator("embedding_rownorm", FLOAT32),
    Operator("rownorm", FLOAT32, in_place=True),
    Operator("add_rownorm", FLOAT32, in_place=True),
    Operator("attention", FLOAT32),
    Operator("packed_attention", FLOAT32),
    Operator("heads_apart", EXACT),
    Operator("add", FLOAT32, in_place=True),
    Operator("collapse_linear", FLOAT32, epilogue=""),
    Operator("linear_softmax", FLOAT32),
    Operator("linear_argmax", EXACT, dtypes=("int64", "uint8")),
    *_both("nhwc", Operator("conv2d", FLOAT32, epilogue="")),
    *(Operator(name, FLOAT32, "relu", name, in_place=True) for name in POINTWISE[1:]),
    Operator("leaky_relu", FLOAT32, in_place=True),
    Operator("maxout", EXACT),
    Operator("batchnorm2d", FLOAT32, epilogue="", in_place=True),
    *_both("nhwc", Operator("maxpool2d", EXACT, "pool2d")),
    *_both("nhwc", Operator("avgpool2d", FLOAT32, "pool2d")),
    *_both("nhwc", Operator("global_avgpool2d", FLOAT32)),
    *_both("nhwc", Operator("local_response_norm", FLOAT32)),
    *_both("nhwc", Operator("conv2d_relu", FLOAT32, "conv2d", "relu")),
    *(Operator(f"conv2d_{name}", FLOAT32, "conv2d", name) for name in ("tanh", "sigmoid", "leaky_relu")),
    *(Operator(f"conv2d_{name}_maxpool2d", FLOAT32, "conv2d_maxpool2d", name) for name in ("relu", "tanh")),
    Operator("conv2d_relu_global_avgpool2d", FLOAT32, "conv2d_global_avgpool2d", "relu"),
    Operator(IMAGE_CHAIN, FLOAT32, None),
    Operator("batchnorm2d_relu", FLOAT32, "batchnorm2d", "relu", in_place=True),
    *(Operator(f"linear_{name}", FLOAT32, "linear", name) for name in ("tanh", "sigmoid", "leaky_relu")),
    *_both("nlc", Operator("linear_gelu", FLOAT32, "linear", "gelu")),
    Operator("linear_maxout", FLOAT32),
    *_both("nlc", Operator("linear_gelu_linear", FLOAT32, "two_linears", "gelu")),
    *_both("nhwc", Operator("pixels", EXACT)),
    *(row for before in ("", "relu_") for of in ("conv1d_backward", "linear_backward")
      for row in _both("nlc", Operator(before + of, FLOAT32, of, before[:-1], results=PRODUCT_GRADIENTS))),
    Operator("conv2d_backward", FLOAT32, results=PRODUCT_GRADIENTS),
    Operator("one_hot_conv1d_backward", FLOAT32, results=PRODUCT_GRADIENTS[1:]),
    Operator("layernorm_backward", FLOAT32, results=NORM_GRADIENTS),
    Operator("relu_backward", EXACT, epilogue="relu"),
    *(Operator(f"{of}_backward", FLOAT32, "relu_backward", of) for of in POINTWISE[1:]),
    *(Operator(f"{of}_backward", FLOAT32) for of in (
        "leaky_relu", "maxpool2d", "avgpool2d", "global_avgpool2d", "local_response_norm", "softmax",
        "softmax_cross_entropy",
    )),
    Operator("maxpool1d_backward", FLOAT32, epilogue=""),
    *_both("nlc", Operator("relu_maxpool1d_backward", FLOAT32, "maxpool1d_backward", "relu")),
    Operator("layernorm_relu_maxpool1d_backward", FLOAT32, results=NORM_GRADIENTS, axes="nlc"),
    Operator("one_hot_conv1d_relu_maxpool1d_backward", FLOAT32, results=PRODUCT_GRADIENTS[1:], axes="nlc"),
    Operator("batchnorm2d_backward", FLOAT32, results=NORM_GRADIENTS),
    Operator("softmax_cross_entropy", FLOAT32),
    *(Operator(f"{of}_backward", FLOAT32, results=NORM_GRADIENTS) for of in ("rownorm", "add_rownorm")),
    Operator("embedding_backward", FLOAT32, results=("dweight", "dpositions", "dtype_rows")),
    Operator("attention_backward", FLOAT32, results=("dq", "dk", "dv")),
    Operator("linear_gelu_linear_backward", FLOAT32, epilogue="gelu",
             results=("dx", "dweight1", "dbias1", "dweight2", "dbias2")),
)  # fmt: skip
