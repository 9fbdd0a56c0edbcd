"""Bias adjustment of daily series: training on a reference and adjusting a simulation, by methods that plug in.

`base` has the interface of a method, `blocks` what surrounds the numbers. `dqm` and `mbcn` (our compiled kernels),
`xsdba` (the rest) and `ibicus` are methods; `perfect_model` tests methods on a known future. Imports `science`,
`fields`, `errors`, `files` and `machine`.
"""
