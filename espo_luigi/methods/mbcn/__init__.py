"""MBCn by compiled kernels: several variables of a cell together, trained and adjusted in one pass."""
