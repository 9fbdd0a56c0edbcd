"""Detrended quantile mapping by our own kernels."""
