"""Instructions that Numba has no name for, as functions for kernels. All inline PTX stands here, a file a chapter.

Each is called as the instruction of NVIDIA's "PTX ISA" that a call compiles to; its docstring says its operands, its
section there, and since which compute capability it is. docs/ptx.md has examples. In the simulator plain Python stands
in, or NotImplementedError is raised where it has no such hardware. Those that take constants are made by a call outside
the kernel: `wait = ptx.wgmma_wait_group(0)`.
"""

# ruff: noqa: F401, F403 - to be called from here
from charcnn.gpu.ptx.arithmetic import *
from charcnn.gpu.ptx.convert import *
from charcnn.gpu.ptx.cp_async import *
from charcnn.gpu.ptx.grid import *
from charcnn.gpu.ptx.intrinsics import instruction
from charcnn.gpu.ptx.ld_st import *
from charcnn.gpu.ptx.mbarrier import *
from charcnn.gpu.ptx.mma import *
from charcnn.gpu.ptx.mma_windows import *
from charcnn.gpu.ptx.simulated import E4M3_MAX, LOW_SCALE
from charcnn.gpu.ptx.system import *
from charcnn.gpu.ptx.tma import *
from charcnn.gpu.ptx.warp import *
from charcnn.gpu.ptx.wgmma import *
