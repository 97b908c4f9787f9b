"""A GPU of one multiprocessor for tests in the emulator, and kernels that are made anew for what a test patches."""

from __future__ import annotations

import sys
from functools import lru_cache

from charcnn.gpu import device
from charcnn.ops.conv1d.wgmma import split_k


def fresh_kernels(monkeypatch):
    """Kernels close over sizes that a test patches: what makes them has other caches meanwhile."""
    own = {}
    for module in [module for name, module in sys.modules.items() if name.startswith("charcnn.ops")]:
        for name, value in list(vars(module).items()):
            if hasattr(value, "cache_parameters"):
                if id(value) not in own:
                    own[id(value)] = lru_cache(value.cache_parameters()["maxsize"])(value.__wrapped__)
                monkeypatch.setattr(module, name, own[id(value)])


def one_multiprocessor(monkeypatch):
    """Few tiles; and kernels as `fresh_kernels` says."""
    fresh_kernels(monkeypatch)
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    monkeypatch.setattr(split_k, "offered", lambda *_: None)  # test_wgmma_split_k has its tiles
