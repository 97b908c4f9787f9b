"""conv2d_nhwc by the double-buffered kernel of conv1d_nlc: a sequence is an image of one row."""

from __future__ import annotations

from charcnn.aliases import Array, Stream
from charcnn.gpu.launch import Call
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d
from charcnn.ops.common.epilogues import SECOND, check
from charcnn.ops.conv1d.double_buffered import launch_windows


def launch(
    call: Call, x: Array, weight: Array, bias: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, *,
    epilogue: str,
) -> None:  # fmt: skip
    """Nothing is copied beforehand: copies from an image leave zeros in shared memory for what lies outside.

    The copies are of 32 bits where C_in or C_out of a group is no multiple of 4, or an array starts at no multiple of
    16 bytes.
    """
    window = shapes2d.window_of(x.shape[1], x.shape[2], weight.shape[:2], stride, padding, dilation)
    launch_windows(call, (x, weight, bias), call.out, epilogue or "store", window, groups=groups)


def convolved(
    epilogue: str, x: Array, weight: Array, bias: Array, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1,
    groups: int = 1, out: Array = None, stream: Stream = None, second: Array = None,
) -> Array:  # fmt: skip
    """conv2d_nhwc with any epilogue, by its name; other arguments as of `charcnn.ops.conv2d_nhwc_double_buffered`.

    Args:
        epilogue: a row of `epilogues.EPILOGUES` or `epilogues.SECOND`, or an empty one.
        second: for a row of SECOND, its operand, float32: of the results' shape, or (C_out,). The former may be `out`.

    Raises:
        ValueError: there is no such row, or it takes another second operand, or none.
    """
    shape = shapes2d.conv2d_nhwc(x, weight, bias, stride, padding, dilation, groups)
    given = {} if _second(epilogue, second, shape) is None else {"second": second}
    in_place = "second" if given and second.ndim > 1 else ""
    call = Call(out, stream, shape, in_place=in_place, x=x, weight=weight, bias=bias, **given)
    x, weight, bias, *others = call.inputs
    window = shapes2d.window_of(x.shape[1], x.shape[2], weight.shape[:2], stride, padding, dilation)
    launch_windows(call, (x, weight, bias), call.out, epilogue or "store", window, groups=groups,
                   second=others[0] if others else None)  # fmt: skip
    return call.result()


def _second(epilogue: str, second: Array, results: Shape) -> Array:
    """The second operand, if this epilogue takes such a one."""
    if epilogue not in SECOND:
        check(epilogue)
        if second is not None:
            raise ValueError(f"second is given: {epilogue=} takes none; need one of {', '.join(SECOND)}")
        return None
    need = results[-1:] if SECOND[epilogue].by_channel else results
    if second is None or tuple(second.shape) != tuple(need):
        came = "None" if second is None else f"of shape {tuple(second.shape)}"
        raise ValueError(f"second is {came}: {epilogue=} needs {tuple(need)}")
    return second
