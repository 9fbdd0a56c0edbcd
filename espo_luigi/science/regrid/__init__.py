"""Regridding: interpolation weights on the sphere, and cascades of stages as one sparse matrix.

Imports only the shared modules of `science`. Gives regridded datasets.
"""
