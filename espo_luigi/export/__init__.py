"""Products as other tools want them: NetCDF files, named and described as a data reference syntax (DRS) says.

Imports `config` (YAML files) and `store` (publication). `tasks.export` gives it an opened product and the fields of its
names. A DRS is a file of data in `drs/`, or a user's own.
"""
