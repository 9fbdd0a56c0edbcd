"""Where things lie in degrees: boxes, polygons of files, cells of datasets, and cutting.

`boxes` and `polygons` know no xarray. `cells` knows names of latitude and longitude, horizontal dimensions, and which
cells lie inside of boxes, polygons and domains. `cutting` cuts regions out of raw data and of the reference.
"""
