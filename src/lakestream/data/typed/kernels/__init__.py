"""Numba kernels that all formats share."""
