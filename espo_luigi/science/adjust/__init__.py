"""Bias adjustment of daily series: training on a reference and adjusting a simulation.

`biasadjust` chooses between our compiled kernels (`kernels`, by way of `kernel_backend`) and xsdba (`xsdba_backend`).
Imports only the shared modules of `science`. Gives training datasets and adjusted series.
"""
