"""Bias adjustment of daily series: training on a reference and adjusting a simulation.

`blocks` chooses between our compiled kernels (`dqm`) and xsdba (`xsdba`). Imports only shared modules of `science`.
"""
