"""Compiled kernels (numba) on arrays of a block of cells; they know numpy only.

The machine code is cached under a name made from all files of this folder (`methods.kernel_cache`).
"""

# What the adjustment does to a day's value besides mapping it between quantiles: noise takes the place of a value under
# a threshold, a dry day is made wet, a value beyond the calibration's quantiles gets the last one's factor, a value in
# the tail is kept. The kernels count days in this order.
TREATMENTS = ("jittered", "made_wet", "extrapolated", "limited")
