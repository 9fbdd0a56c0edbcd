"""From raw daily files to canonical daily data: units, derived variables, periods, boxes, input problems.

Imports only the shared modules of `science`. Gives datasets to the rules, and lists of problems to the input checks.
"""
