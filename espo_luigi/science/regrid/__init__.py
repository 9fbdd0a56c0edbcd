"""Regridding: interpolation weights on the sphere, and cascades of stages as a single sparse matrix.

Imports only the shared modules of `science`. Gives regridded datasets.
"""
