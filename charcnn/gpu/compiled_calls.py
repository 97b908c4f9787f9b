"""NVIDIA's driver, called by compiled code that does not hold Python's lock."""

from __future__ import annotations

from functools import cache

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from charcnn.gpu.device import DeviceError

_INTERFACE = 12000
"""The version of CUDA whose functions these are; the driver may be newer."""


@intrinsic
def call_at(typing, function, arguments):
    """Call the function at an address with integers as wide as a pointer, a tuple; its status."""

    def generate(context, builder, of, given):
        passed = [builder.extract_value(given[1], i) for i in range(len(of.args[1]))]
        kind = ir.FunctionType(ir.IntType(32), [value.type for value in passed])
        return builder.call(builder.inttoptr(given[0], kind.as_pointer()), passed)

    return types.int32(types.int64, arguments), generate


@cache
def addresses(names: tuple[str, ...]) -> tuple[int, ...]:
    """The addresses of the driver's functions of these names.

    Raises:
        DeviceError: the driver does not have one.
    """
    from cuda.bindings import driver

    found = []
    for name in names:
        status, address, *_ = driver.cuGetProcAddress(name.encode(), _INTERFACE, 0)
        if int(status) != 0 or not address:
            raise DeviceError(f"the driver does not have {name}: update it")
        found.append(int(address))
    return tuple(found)


def status_name(status: int) -> str:
    """What the driver calls a status."""
    from cuda.bindings import driver

    return str(driver.CUresult(status).name)
