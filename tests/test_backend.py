"""The door to the compiler."""

from __future__ import annotations

import pytest

from charcnn.gpu import backend


def test_a_compiler_of_another_name_is_refused(monkeypatch):
    monkeypatch.setattr(backend, "NAME", "nvcc")
    with pytest.raises(ValueError, match="CHARCNN_BACKEND=nvcc: need one of numba-cuda"):
        backend.check()
