"""conv2d of few input channels on tensor cores by mma.sync, NCHW throughout: no matrix is laid out in memory.

Beside `direct`: a block has a whole image in shared memory as words that tensor cores take, and its weights stay in
registers. Windows of several rows share what is loaded of a row of the image.
"""

from __future__ import annotations

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.gpu.ptx import VECTOR
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d
from charcnn.ops.conv2d.direct_mma_kernel import make_kernel
from charcnn.ops.conv2d.direct_mma_plan import ANY, BULK_COPIES, plan


def launch(
    call: Call, x: Array, weight: Array, bias: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, *,
    precision: str, epilogue: str,
) -> None:  # fmt: skip
    """All weights of 16 output channels must fit in a thread's registers: it is meant for some six input channels.

    Stride, dilation and groups are 1. In fp16 and fp16x3 x loses digits below 2^-14, as float16 does.

    Raises:
        ValueError: stride, dilation or groups are more than 1; weights do not fit in registers, or an image not in
            shared memory.
    """
    if groups != 1:
        raise ValueError(f"{groups=}: the technique direct_mma needs 1; conv2d's naive takes any")
    shape, window = call.out.shape, shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    sizes = tuple(int(extent) for extent in x.shape), shape[1], window, precision
    plan(*sizes)  # whether it fits at all
    device.require_tensor_cores("direct_mma", way_out=ANY)
    if call.out.size:
        aligned, out_at = device.address(x) % (4 * VECTOR) == 0, device.address(call.out)
        found = plan(*sizes, out_at % (4 * VECTOR) == 0 and device.has_capability(BULK_COPIES))
        width = next((copy for copy in (4, 2) if aligned and found.image % copy == 0), 1)
        paired = out_at % 8 == 0 and shape[3] % 2 == 0
        kernel = make_kernel(found, epilogue, width, paired)
        call.launch(kernel, found.grid(shape[0]), found.threads, x, weight, bias, call.out, shared=found.shared_bytes)
