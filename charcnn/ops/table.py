"""The table of variants, operators by techniques: `charcnn.ops.functions` makes the functions for users of it.

A new variant is a launch and its row here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from charcnn.aliases import Function
from charcnn.ops.common.precision import HALF_PRECISIONS, SPARSE_PRECISIONS, TENSOR_PRECISIONS
from charcnn.ops.operator_row import FILTERED, Operator, loaded
from charcnn.ops.operators import CHAIN, IMAGE_CHAIN, OPERATORS, POINTWISE
from charcnn.ops.techniques import ASYNCHRONOUS, CPU


@dataclass(frozen=True)
class Variant:
    """One implementation of an operator, in one precision."""

    operator: str
    technique: str
    launch: str
    """The function that starts it, as module:name below `charcnn.ops`: called with a `Call`, or on a CPU with where to
    write, then the operator's arguments in order."""
    precision: str | None = None
    """What its argument of that name says; None: it has none, and computes in float32."""
    tolerance: float | None = None
    """Overrides the operator's."""
    hopper: bool = False
    """Needs Hopper's tensor cores: no other GPU will do; the simulator emulates them."""
    ampere: bool = False
    """Needs tensor cores of compute capability 8.0 or later; the simulator emulates them."""

    @property
    def device(self) -> str:
        """cpu or cuda"""
        return "cpu" if self.technique in CPU else "cuda"

    @property
    def tensor_cores(self) -> bool:
        """Whether it needs tensor cores, of some kind."""
        return self.hopper or self.ampere

    @property
    def capability(self) -> tuple[int, int] | None:
        """The least compute capability of a GPU that runs it; None of any."""
        if self.hopper:
            return 9, 0
        needs = ((self.precision or self.ampere) and not self.turing) or self.technique in ASYNCHRONOUS
        return (8, 0) if needs else None

    @property
    def turing(self) -> bool:
        """Whether tensor cores of compute capability 7.5 will do."""
        others = *IMAGES, "attention", *(row.name for row in OPERATORS if row.results)
        return self.technique == "mma" and self.precision == "fp16" and self.operator not in others

    @property
    def sparse(self) -> bool:
        """Whether it takes 2:4 sparse weights alone."""
        return self.technique == "wgmma_sparse"

    @property
    def left_out(self) -> tuple[str, ...]:
        """The operator's parameters that it has not."""
        stepping = self.technique in STEPPING and self.operator in ("conv1d_nlc", "conv1d_relu_nlc")
        return ("stride", "padding", "dilation") if stepping else ()

    @property
    def in_place(self) -> bool:
        """Whether `out` may be x itself."""
        return operator(self.operator).in_place or (self.operator, self.technique) == ("softmax", "loops")

    @property
    def layout(self) -> str:
        """Of its operator's features."""
        return operator(self.operator).layout

    @property
    def function(self) -> str:
        """The name in charcnn.ops: the operator, then the technique."""
        return f"{self.operator}_{self.technique}"

    @property
    def label(self) -> str:
        """Technique and precision: naive, wgmma_fp16."""
        return f"{self.technique}_{self.precision}" if self.precision else self.technique

    @property
    def name(self) -> str:
        """Of this row alone: the function, then the precision, where it has one."""
        return f"{self.operator}_{self.label}"

    @property
    def launcher(self) -> Function:
        """The function, in this precision; its module is imported here."""
        launcher: Function = loaded("charcnn.ops", self.function)
        return partial(launcher, precision=self.precision) if self.precision else launcher


UNSCALED = ("fp16", "bf16", "tf32", "fp16x3")
"""Precisions of tensor cores whose features need no scales."""

STEPPING = (
    "coalesced", "tiled", "register_tiled", "vectorized", "winograd", "winograd_cpu", "small_batch", "wgmma_sparse",
)  # fmt: skip
"""Techniques of conv1d_nlc and conv1d_relu_nlc whose window takes each position in turn: no stride, padding, or
dilation."""

IMAGES = ("conv2d_nhwc", "conv2d_relu_nhwc")
"""Operators on images that tensor cores compute."""


def _rows(
    operators: str, technique: str, launch: str, precisions: Iterable[str | None] = (None,),
    tolerance: float | None = None, **needs: bool,
) -> Iterator[Variant]:  # fmt: skip
    """A row an operator and precision; one of tensor cores has its own tolerance."""
    for name in operators.split():
        for precision in precisions:
            own = TENSOR_PRECISIONS.get(precision or "")
            yield Variant(name, technique, launch, precision, own.tolerance if own else tolerance, **needs)


CONV2D = "conv2d conv2d_relu conv2d_tanh"
LINEAR = "linear linear_relu linear_tanh linear_gelu linear_sigmoid linear_leaky_relu"
PRODUCTS = (("conv1d_nlc conv1d_relu_nlc", "launch"), ("conv1d_relu_maxpool1d_nlc", "launch_pooled"),
            ("conv1d_stat_nlc", "launch_stat"), ("linear_nlc linear_relu_nlc", "launch_linear"),
            ("linear_gelu_nlc", "launch_linear"), ("linear_gelu_linear_nlc", "launch_two"))  # fmt: skip
"""Operators that a kernel of products computes, and what starts it for them."""
GATHERED = (("one_hot_conv1d_relu_maxpool1d_nlc", "launch_pooled"),
            ("one_hot_conv1d_layernorm_relu_maxpool1d_nlc", "launch_normalised"))  # fmt: skip
BETWEEN = (("maxpool2d", "pool2d", "launch_max"), ("avgpool2d", "pool2d", "launch_mean"),
           ("global_avgpool2d", "pool2d", "launch_mean"), ("local_response_norm", "local_response_norm", "launch"),
           ("pixels", "pixels", "launch"))  # fmt: skip
"""Operators that stand between convolutions of images, or before them: where their kernels are, in either layout."""
BESIDE = (*((of, of) for of in ("one_hot", "collapse", "argmax", "embedding", "heads_apart", "add")),
          ("layernorm rownorm", "layernorm.layernorm"),
          (" ".join(POINTWISE), "pointwise"), (" ".join(f"{of}_backward" for of in POINTWISE), "pointwise_backward"),
          *((f"{of}_backward", f"{of.replace('one_hot', 'token')}.backward")
            for of in ("conv1d", "one_hot_conv1d", "conv2d", "linear", "layernorm")),
          *((f"{of}_backward", f"{of}_backward")
            for of in ("maxpool1d", "maxpool2d", "avgpool2d", "local_response_norm", "batchnorm2d")),
          *((f"{of}_backward", f"{of}.backward") for of in ("softmax", "attention")),
          ("embedding_backward", "embedding_backward"), ("rownorm_backward", "layernorm.backward"),
          ("linear_gelu_linear_backward", "linear.two_linears_backward"),
          *((f"softmax_{of}", f"softmax.{of}") for of in ("cross_entropy", "cross_entropy_backward")))  # fmt: skip
"""Operators whose plain loops and naive kernel one module has."""

ROWWISE = (*((of, of) for of in ("argmax", "embedding", "embedding_rownorm")), ("rownorm", "layernorm.rownorm"))
"""Operators of rows of the last axis, and the module of what computes them on all CPU cores, and with wide loads."""

_BY_TECHNIQUE = (
    *(row for names, home in BESIDE for technique in ("loops", "naive")
      for row in _rows(names, technique, f"{home}:launch_{technique}")),
    *_rows("one_hot_nlc", "coalesced", "one_hot_nlc:launch"),
    *_rows("layernorm_relu", "naive", "layernorm.layernorm:launch_relu"),
    *_rows("layernorm_relu_maxpool1d", "naive", "layernorm.relu_maxpool1d:launch"),
    *_rows("layernorm_relu_maxpool1d_nlc", "coalesced", "layernorm.relu_maxpool1d_nlc:launch"),
    *_rows("layernorm_relu_maxpool1d_nlc", "vectorized", "layernorm.relu_maxpool1d_nlc_precisions:launch",
           HALF_PRECISIONS),
    *_rows("tanh gelu sigmoid", "cpu_vector", "images_cpu:launch_pointwise"),
    *_rows("leaky_relu", "loops", "pointwise:launch_leaky_relu_loops"),
    *_rows("leaky_relu", "naive", "pointwise:launch_leaky_relu_naive"),
    *(row for technique in ("loops", "naive") for name, launch in (
        ("leaky_relu_backward", "pointwise_backward:launch_leaky_relu"),
        ("global_avgpool2d_backward", "avgpool2d_backward:launch_global"),
        ("add_rownorm_backward", "layernorm.backward:launch_add"),
    ) for row in _rows(name, technique, f"{launch}_{technique}")),
    *_rows("leaky_relu", "cpu_vector", "images_cpu:launch_leaky_relu"),
    *_rows("maxout", "loops", "pointwise:launch_maxout_loops"),
    *_rows("maxout", "naive", "pointwise:launch_maxout_naive"),
    *_rows("softmax", "loops", "softmax.loops:launch"),
    *_rows("softmax", "naive", "softmax.naive:launch"),
    *_rows("embedding_rownorm", "naive", "embedding_rownorm:launch_naive"),
    *_rows("softmax", "cpu_vector", "softmax.loops:launch_cpu"),
    *_rows("softmax", "vectorized", "softmax.vectorized:launch"),
    *(row for name, home in ROWWISE for technique, launch in (("cpu_vector", "launch_cpu"), ("vectorized", "launch"))
      for row in _rows(name, technique, f"{home}:{launch}")),
    *_rows("add_rownorm", "loops", "layernorm.rownorm:launch_add_loops"),
    *_rows("add_rownorm", "naive", "layernorm.rownorm:launch_add_naive"),
    *_rows("add_rownorm", "cpu_vector", "layernorm.rownorm:launch_add_cpu"),
    *_rows("add_rownorm", "vectorized", "layernorm.rownorm:launch_add"),
    *_rows("attention", "loops", "attention.loops:launch"),
    *_rows("attention", "cpu_vector", "attention.cpu:launch"),
    *_rows("attention", "naive", "attention.naive:launch"),
    *_rows("attention", "row_blocks", "attention.row_blocks:launch"),
    *_rows("attention", "flash", "attention.flash:launch"),
    *_rows("attention", "mma", "attention.mma:launch", HALF_PRECISIONS, ampere=True),
    *_rows("attention", "wgmma", "attention.wgmma_layer:launch", HALF_PRECISIONS, hopper=True),
    *_rows("packed_attention", "loops", "attention.packed:launch_loops"),
    *_rows("packed_attention", "cpu_vector", "attention.packed:launch_cpu"),
    *_rows("packed_attention", "naive", "attention.packed:launch_naive"),
    *_rows("packed_attention", "wgmma", "attention.packed:launch_wgmma", HALF_PRECISIONS, hopper=True),
    *_rows("maxpool1d", "loops", "maxpool1d:launch_loops"),
    *_rows("maxpool1d relu_maxpool1d", "naive", "maxpool1d:launch_naive"),
    *_rows("conv1d", "loops", "conv1d.loops:launch"),
    *_rows("conv1d conv1d_relu", "cpu_gemm", "conv1d.cpu_gemm:launch"),
    *_rows("conv1d conv1d_relu", "naive", "conv1d.naive:launch"),
    *_rows("conv1d_stat", "naive", "conv1d.naive:launch_stat"),
    *_rows("conv1d_relu_maxpool1d", "naive", "conv1d.naive:launch_pooled"),
    *_rows(CHAIN, "whole", "chain.blocks:whole"),
    *_rows(CHAIN, "pairs", "chain.blocks:pairs"),
    *(row for technique in STEPPING[:4] for row in _rows("conv1d_nlc", technique, f"conv1d.{technique}:launch")),
    *(row for names, launch in PRODUCTS[:3]
      for row in _rows(names, "double_buffered", f"conv1d.double_buffered_variants:{launch}")),
    *_rows("linear_nlc linear_relu_nlc linear_gelu_nlc", "double_buffered", "linear.linear_kn:launch_once"),
    *_rows("linear_gelu_linear_nlc", "double_buffered", "linear.linear_kn:launch_two"),
    *(row for names, launch in PRODUCTS[:3] for row in _rows(names, "winograd", f"conv1d.winograd:{launch}")),
    *(row for names, launch in PRODUCTS[:2] for row in _rows(names, "winograd_cpu", f"conv1d.winograd_cpu:{launch}")),
    *(row for names, launch in PRODUCTS
      for row in _rows(names, "mma", f"conv1d.mma.variants:{launch}", TENSOR_PRECISIONS, ampere=True)),
    *(row for names, launch in PRODUCTS
      for row in _rows(names, "wgmma", f"conv1d.wgmma.variants:{launch}", TENSOR_PRECISIONS, hopper=True)),
    *(row for names, launch in (*PRODUCTS[:2], PRODUCTS[3])
      for row in _rows(names, "wgmma_sparse", f"conv1d.wgmma_sparse.variants:{launch}", SPARSE_PRECISIONS,
                       hopper=True)),
    *(row for names, launch in PRODUCTS[:2]
      for row in _rows(names, "small_batch", f"conv1d.small_batch:{launch}", TENSOR_PRECISIONS, hopper=True)),
    *_rows("relu_conv1d_backward", "naive", "conv1d.backward:launch_naive"),
    *_rows("relu_linear_backward", "naive", "linear.backward:launch_naive"),
    *_rows("relu_maxpool1d_backward", "naive", "maxpool1d_backward:launch_naive"),
    *_rows("one_hot_conv1d_relu_maxpool1d_backward_nlc", "warp_gather", "token_conv1d.pooled_backward:launch",
           tolerance=HALF_PRECISIONS["bf16"].tolerance, ampere=True),
    *(row for name, home in (("relu_maxpool1d_backward_nlc", "maxpool1d_backward_nlc"),
                             ("layernorm_relu_maxpool1d_backward_nlc", "layernorm.pooled_backward"))
      for row in _rows(name, "vectorized", f"{home}:launch", tolerance=HALF_PRECISIONS["bf16"].tolerance, ampere=True)),
    *(row for technique, needs in (("mma", {"ampere": True}), ("wgmma", {"hopper": True}))
      for of, launch in (("conv1d", technique), ("linear", f"linear_{technique}"))
      for row in _rows(f"{of}_backward_nlc relu_{of}_backward_nlc", technique,
                       f"conv1d.backward_products:launch_{launch}", HALF_PRECISIONS, **needs)),
    *_rows("one_hot_conv1d", "cpu_gather", "token_conv1d.cpu:launch"),
    *_rows("one_hot_conv1d_nlc", "gather", "token_conv1d.gather:launch"),
    *_rows("one_hot_conv1d_stat_nlc", "lags", "token_conv1d.lags:launch"),
    *_rows("one_hot_conv1d_stat_nlc", "lag_sums", "token_conv1d.lag_sums:launch"),
    *(row for name, launch in GATHERED for row in _rows(name, "gather", f"token_conv1d.gather:{launch}")),
    *(row for name, launch in GATHERED
      for row in _rows(name, "warp_gather", f"token_conv1d.weights:{launch}", HALF_PRECISIONS)),
    *_rows("linear", "loops", "linear.linear:launch_loops"),
    *_rows("linear linear_relu linear_gelu", "cpu_gemm", "linear.cpu_gemm:launch"),
    *_rows("linear_gelu_linear", "cpu_gemm", "linear.cpu_gemm:launch_two"),
    *_rows(f"{LINEAR} collapse_linear", "naive", "linear.linear:launch_naive"),
    *_rows("linear_maxout", "naive", "linear.linear:launch_maxout"),
    *_rows("linear_relu_linear linear_gelu_linear", "naive", "linear.linear_relu_linear:launch"),
    *_rows("linear_softmax", "naive", "linear.softmax_argmax:launch_softmax"),
    *_rows("linear_argmax", "naive", "linear.softmax_argmax:launch_argmax"),
    *_rows("conv2d", "loops", "conv2d.loops:launch"),
    *_rows("conv2d conv2d_relu", "cpu_gemm", "conv2d.cpu_gemm:launch"),
    *(row for of in ("conv2d", "linear") for row in (
        *_rows(of, "cpu_blas", f"{of}.cpu_blas:launch"),
        *_rows(f"{of}_backward", "cpu_blas", f"{of}.cpu_blas:launch_backward"))),
    *_rows("conv2d conv2d_relu", "cpu_direct", "conv2d.cpu_direct:launch"),
    *_rows("conv2d conv2d_relu", "winograd_rows_cpu", "conv2d.winograd_rows:launch"),
    *_rows(f"{CONV2D} conv2d_sigmoid conv2d_leaky_relu", "naive", "conv2d.naive:launch"),
    *_rows("conv2d_relu_maxpool2d conv2d_tanh_maxpool2d", "naive", "conv2d.naive:launch_pooled"),
    *_rows("conv2d_relu_global_avgpool2d", "naive", "conv2d.naive:launch_averaged"),
    *_rows(CONV2D, "direct", "conv2d.direct:launch"),
    *_rows("conv2d_relu_maxpool2d conv2d_tanh_maxpool2d", "direct", "conv2d.direct:launch_pooled"),
    *_rows(CONV2D, "direct_mma", "conv2d.direct_mma:launch", UNSCALED, ampere=True),
    *_rows(IMAGE_CHAIN, "whole", "chain.blocks2d:whole"),
    *_rows(IMAGE_CHAIN, "tiles", "chain.blocks2d:tiles"),
    *_rows(IMAGE_CHAIN, "rolling", "chain.blocks2d:rolling"),
    *_rows(" ".join(IMAGES), "mma", "conv2d.mma:launch", TENSOR_PRECISIONS, ampere=True),
    *_rows(" ".join(IMAGES), "wgmma", "conv2d.wgmma:launch", TENSOR_PRECISIONS, hopper=True),
    *_rows(" ".join(IMAGES), "cpu_gemm", "conv2d.cpu_gemm:launch_nhwc"),
    *_rows(" ".join(IMAGES), "winograd_cpu", "conv2d.winograd_cpu:launch"),
    *_rows(" ".join(IMAGES), "double_buffered", "conv2d.double_buffered:launch"),
    *_rows(" ".join(IMAGES), "winograd", "conv2d.winograd:launch_once", tolerance=FILTERED),
    *_rows("batchnorm2d", "loops", "batchnorm2d:launch_loops"),
    *_rows("batchnorm2d batchnorm2d_relu", "naive", "batchnorm2d:launch_naive"),
    *(row for name, home, launch in BETWEEN for technique in ("loops", "naive")
      for row in _rows(name, technique, f"{home}:{launch}_{technique}")),
    *(row for name, home, launch in BETWEEN
      for row in _rows(f"{name}_nhwc", "coalesced", f"{home}_nhwc:{launch}_coalesced")),
    *(row for name, home, launch in BETWEEN
      for row in _rows(f"{name}_nhwc", "vectorized", f"{home}_nhwc:{launch}_vectorized",
                       ("fp32", "fp16x3", *HALF_PRECISIONS))),
    *_rows("maxpool2d_nhwc", "cpu_vector", "images_cpu:launch_max"),
    *_rows("avgpool2d_nhwc", "cpu_vector", "images_cpu:launch_mean"),
    *_rows("local_response_norm_nhwc", "cpu_vector", "images_cpu:launch_norm"),
    *_rows("pixels_nhwc", "cpu_vector", "images_cpu:launch_pixels"),
)  # fmt: skip

VARIANTS = tuple(row for operator in OPERATORS for row in _BY_TECHNIQUE if row.operator == operator.name)
"""By operator, in the order of the story; the techniques of each in theirs."""


def operator(name: str) -> Operator:
    """The operator's row."""
    return _NAMED[name]


_NAMED = {row.name: row for row in OPERATORS}


ANY_LAYOUT = (*POINTWISE, "leaky_relu", "softmax")
"""Operators that know no channels, or of which an input is a row."""


def function_name(computes: str, technique: str, layout: str = "channels_first") -> str | None:
    """The function of `charcnn.ops` that computes it by a technique, on features of this layout, or None."""
    return _FUNCTIONS.get((computes, technique, "channels_first" if computes in ANY_LAYOUT else layout))


_FUNCTIONS = {(operator(row.operator).computes, row.technique, row.layout): row.function for row in VARIANTS}


def tolerance(variant: Variant) -> float:
    """Largest ||out - ref|| / ||ref|| of a variant: its own, or its operator's."""
    return operator(variant.operator).tolerance if variant.tolerance is None else variant.tolerance
