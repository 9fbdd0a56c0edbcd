"""NetCDF files of others: what HDF5 would follow to other files, and small files in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO, NoReturn

import h5py
import numpy as np
import xarray as xr
from xarray.backends.locks import HDF5_LOCK

from espo_luigi.errors import DataError

# Raw data of a dozen variables and hourly steps, or thirty indicators of regions by month and level, stay below; more
# takes minutes and gigabytes to open.
MOST_VARIABLES, LONGEST_DIMENSION = 5000, 5_000_000
_MOST_BYTES = 2**31
NETCDF = (b"CDF", b"\x89HDF")


def load_netcdf(file: BinaryIO, without: Iterable[str] = ()) -> xr.Dataset:
    """Return the values of an opened file, in memory; `without` the variables along some dimensions.

    Raises
    ------
    DataError
        As `check_hdf5` does, and if the values take more than 2 GiB: compressed zeros take hardly any byte of a file.
    """
    begin = file.read(4)
    if not begin.startswith(NETCDF):
        raise DataError(f"it begins with {begin!r}; expected a NetCDF file")
    if is_hdf5 := begin == NETCDF[1]:
        with HDF5_LOCK, h5py.File(file, "r") as held:
            check_hdf5(held)
    file.seek(0)
    with xr.open_dataset(file, engine="h5netcdf" if is_hdf5 else "scipy") as stored:
        ds = stored.drop_dims(without, errors="ignore")
        if ds.nbytes > _MOST_BYTES:
            raise DataError(f"its values take {ds.nbytes} bytes; expected a table of at most {_MOST_BYTES} bytes")
        return ds.load()


def text_attribute(file: h5py.File, name: str) -> str:
    """Return a global attribute as text, stored as letters or, beyond ASCII, as a string; "" where it is missing."""
    first = (*np.ravel(file.attrs.get(name, "")), "")[0]
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)


def check_hdf5(file: h5py.File) -> None:
    """Refuse values in other files, which HDF5 reads without a word, whatever they are; loops; and too many objects."""
    objects = longest = 0
    soft, groups, to_see = [], {file["/"].id}, [file["/"]]
    while to_see:
        group = to_see.pop()
        for name in group:
            objects += 1
            check_extent(objects, longest)
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                _refuse_part(f"{name} is a link to {link.filename}, another file")
            if isinstance(link, h5py.SoftLink):
                soft.append((group, name))  # not followed yet: an external link may lie on its way
                continue
            found = group[name]
            if isinstance(found, h5py.Group):
                if found.id in groups:
                    _refuse_part(f"the group {name} is there twice, and may be inside of itself")
                groups.add(found.id)
                to_see.append(found)
            longest = max(longest, _longest_of(found))
    for group, name in soft:
        if name in group and isinstance(group[name], h5py.Group):
            _refuse_part(f"{name} is a link to a group")
    check_extent(objects, longest)


def _longest_of(part: h5py.HLObject) -> int:
    """Return the longest dimension of a dataset, and 0 of anything else; refuse values in other files."""
    if not isinstance(part, h5py.Dataset):
        return 0
    elsewhere = [name for name, *_ in part.external or ()]
    if part.is_virtual:
        elsewhere += [source.file_name for source in part.virtual_sources() if source.file_name != "."]
    if elsewhere:
        _refuse_part(f"the values of {part.name} are in {elsewhere[0]}, another file")
    return max(part.shape or (), default=0)


def _refuse_part(what: str) -> NoReturn:
    raise DataError(
        f"{what}; expected all values in the file itself, each once, as a file of others might name a private one. "
        "Have its owner write the values into a new file, or catalogue the other file"
    )


def check_extent(variables: int, longest: int) -> None:
    """Refuse more variables or longer dimensions than any raw data have, which take minutes and gigabytes to open."""
    if variables > MOST_VARIABLES:
        raise DataError(
            f"it has more than {MOST_VARIABLES} variables; expected a dataset of a few. Write those that you need into "
            "a file of their own"
        )
    if longest > LONGEST_DIMENSION:
        raise DataError(
            f"a dimension has {longest} steps; expected {LONGEST_DIMENSION} at most, which are 500 years of hours. The "
            "file is damaged, or its steps are too short"
        )
