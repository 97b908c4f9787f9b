"""Arrays on a GPU that is not there."""

import ctypes

import numpy as np

BEGIN = 0x7F0000000000


class OnGpu:
    """A device array, as Numba's are; its memory is not there."""

    __cuda_ndarray__ = True

    def __init__(self, shape, begin, dtype=np.float32):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.strides = np.empty(shape, dtype).strides
        self.size, self.ndim = int(np.prod(shape)), len(shape)
        self.nbytes = self.size * self.dtype.itemsize
        self.begin, self.gpu_data = begin, None

    def is_c_contiguous(self):
        return True

    @property
    def device_ctypes_pointer(self):
        return ctypes.c_size_t(self.begin)


class Exported:
    """An array of a library that numba-cuda does not know."""

    def __init__(self, begin, shape=(4,), **more):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": (begin, False), **more}
