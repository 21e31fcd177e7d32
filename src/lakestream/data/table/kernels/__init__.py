"""Numba kernels of reading and writing."""
