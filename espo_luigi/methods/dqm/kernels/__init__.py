"""Compiled kernels (numba) on arrays of a block of cells; they know numpy only.

The machine code is cached under a name made from all files of this folder (`methods.kernel_cache`).
"""
