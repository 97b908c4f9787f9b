"""What Numba lacks on a GPU: devices, launches, CUDA graphs, tensor maps, PTX. It knows no operator."""
