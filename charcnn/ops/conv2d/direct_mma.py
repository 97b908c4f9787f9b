"""conv2d of few input channels on tensor cores by mma.sync, NCHW throughout: no matrix is laid out in memory.

Beside `direct`: a block has a whole image in shared memory as words that tensor cores take, and its weights stay in
registers. Windows of several rows share what is loaded of a row of the image.
"""

from __future__ import annotations

from typing import Any

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.gpu.ptx import VECTOR
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d
from charcnn.ops.conv2d.direct_mma_kernel import make_kernel
from charcnn.ops.conv2d.direct_mma_plan import ANY, BULK_COPIES, plan


def convolved(
    name: str, x: Any, weight: Any, bias: Any, *, stride: Pair, padding: Padding, dilation: Pair, groups: int,
    precision: str, out: Any, stream: Any,
) -> Any:  # fmt: skip
    """The operators below, by the epilogue's name."""
    if groups != 1:
        raise ValueError(f"{groups=}: the technique direct_mma needs 1; conv2d's naive takes any")
    shape = shapes2d.conv2d(x, weight, bias, stride, padding, dilation)
    window = shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    sizes = tuple(int(extent) for extent in x.shape), shape[1], window, precision
    plan(*sizes)  # whether it fits at all
    device.require_tensor_cores("direct_mma", way_out=ANY)
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    if call.out.size:
        x, weight, bias = call.inputs
        aligned, out_at = device.address(x) % (4 * VECTOR) == 0, device.address(call.out)
        found = plan(*sizes, out_at % (4 * VECTOR) == 0 and device.has_capability(BULK_COPIES))
        width = next((copy for copy in (4, 2) if aligned and found.image % copy == 0), 1)
        paired = out_at % 8 == 0 and shape[3] % 2 == 0
        kernel = make_kernel(found, name, width, paired)
        call.launch(kernel, found.grid(shape[0]), found.threads, x, weight, bias, call.out, shared=found.shared_bytes)
    return call.result()


def conv2d_direct_mma(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    precision: str = "fp16",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.conv2d` on tensor cores: a block an image in shared memory, its weights in registers.

    It is meant for up to some six input channels: all weights of 16 output channels must fit in a thread's registers,
    and an image in shared memory. Needs compute capability 8.0.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous; weight (C_out, C_in, KH, KW) and bias (C_out,) likewise. All NumPy
            arrays, or all device arrays (Numba's, or any with __cuda_array_interface__). In fp16 and fp16x3 x is
            infinite beyond 65,504, and below 2^-14 it loses digits, as float16 does.
        stride, dilation, groups: 1.
        padding: zeros: an int, (vertical, horizontal), (top, bottom, left, right), "valid", or "same" as TensorFlow's.
        precision: what is multiplied, one of `direct_mma_plan.PRECISIONS`; fp16x3 keeps float32's tolerance.
        out: where to write, (N, C_out, H_out, W_out), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; stride,
            dilation or groups are more than 1; weights do not fit in registers, or an image not in shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """
    return convolved(
        "", x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups, precision=precision,
        out=out, stream=stream,
    )  # fmt: skip


def conv2d_relu_direct_mma(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    precision: str = "fp16",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`conv2d_direct_mma` with ReLU in the same kernel. Arguments, result and errors as there."""
    return convolved(
        "relu", x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups, precision=precision,
        out=out, stream=stream,
    )  # fmt: skip


def conv2d_tanh_direct_mma(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    precision: str = "fp16",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The same with tanh in place of ReLU."""
    return convolved(
        "tanh", x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups, precision=precision,
        out=out, stream=stream,
    )  # fmt: skip
