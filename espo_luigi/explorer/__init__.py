"""The explorer: a page with maps and plumes of a run, and its data, from finished stores; no Luigi, no configuration.

`app/` has the page, its script and style. `packing` writes numbers so that a page on a disk can load them, `sources`
reads the stores, `make` writes the page and its folder.
"""
