"""Downscaling of series that were adjusted on a coarse grid, by downscalers that plug in.

`base` has the interface of a downscaler, `blocks` what surrounds the numbers. `bcsd`, `qplad` and `mbcnsd` are
downscalers. Imports `science`, `methods` (what compiles kernels), `fields` and `errors`.
"""
