"""The operators, importable by name: conv1d_loops, conv1d_naive, ...

A function's name is the operator, then the technique (`charcnn.catalog.TECHNIQUES` says what each is). All
techniques of an operator take the same arguments as its function in `reference`, and `out=`; those on a GPU also
`stream=`. A shape, dtype or layout that does not fit is a ValueError that names the argument.

Names load when they are first used (`__init__.pyi` lists them): a level for the CPU does not wait for CUDA.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
