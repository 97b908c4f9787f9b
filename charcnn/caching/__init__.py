"""Numba's cache on disk: private, undamaged, shared by processes."""
