"""From adjusted variables to the product: the whole grid, metadata, joined regions, and the check for missing data.

Imports the shared modules of `science`, and `extract.dataset`. Gives the datasets that are published.
"""
