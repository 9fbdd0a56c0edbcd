"""A run's products, published for others.

`catalogue` lists them for intake-esm and xscen, `crate` says where each comes from, `stac` makes a STAC catalogue, and
`relations` relates them to their inputs for DataCite and Zenodo. All read the markers in the products; `exported`
reads the folder of NetCDF files that `espo export` has made. Imports `store`, `catalog` and `jobs`.
"""
