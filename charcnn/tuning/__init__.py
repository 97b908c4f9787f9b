"""Tiles measured: the layers whose kernels have several, and `charcnn tune`. `ops.common.tile_choice` looks them up."""
