"""From adjusted variables to the product: the whole grid, metadata, joined regions, and the check for missing data.

Imports only the shared modules of `science`. Gives the datasets that are published.
"""
