"""Bias adjustment of daily series: training on a reference and adjusting a simulation, by methods that plug in.

`base` has the interface of a method, and `blocks` what surrounds the numbers. `xsdba`, `dqm` (our compiled kernels)
and `ibicus` are methods. Imports only shared modules of `science`.
"""
