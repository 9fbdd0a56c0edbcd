"""References of kerchunk: NetCDF files of a product opened as one Zarr store, without a copy of their data.

https://fsspec.github.io/kerchunk/spec.html
"""

from __future__ import annotations

import base64
import importlib.util
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from espo_luigi.errors import InstallationError

# The part of all addresses that readers may replace (`template_overrides`).
FOLDER = "folder"
_DIMS = "_ARRAY_DIMENSIONS"


@dataclass(frozen=True)
class _File:
    """A NetCDF file as a Zarr store: metadata of each array, its chunks, and what lies along time only."""

    arrays: Mapping[str, Mapping[str, Any]]
    """The text of `.zarray`, parsed."""
    attributes: Mapping[str, Mapping[str, Any]]
    """The text of `.zattrs`, parsed, also of the group, whose name is empty."""
    chunks: Mapping[str, Mapping[str, Any]]
    """By array, the place of each chunk, or its content."""
    along_time: Mapping[str, np.ndarray]
    """The values of time and its bounds, as they are stored."""

    @property
    def days(self) -> int:
        """The number of time steps."""
        return len(self.along_time["time"])

    def axis(self, name: str) -> int | None:
        """Return the place of time among an array's dimensions; None without time."""
        dims = self.attributes[name][_DIMS]
        return dims.index("time") if "time" in dims else None


def check_installed() -> None:
    """Raise InstallationError unless kerchunk is there."""
    if importlib.util.find_spec("kerchunk") is None:
        raise InstallationError(
            "references to NetCDF files need the package kerchunk, which is not installed here: "
            "pip install 'espo_luigi[export]'"
        )


def references(files: Iterable[Path], folder: Path, address: str) -> list[dict[str, Any]]:
    """Return references that hold all files, each the content of a JSON file.

    Zarr needs chunks of equal shape. Where the shape changes (often in the last file, of fewer years), a new reference
    begins.

    Parameters
    ----------
    files : iterable of Path
        NetCDF-4 files below `folder`, each with the coordinate `time`.
    folder : Path
        The folder that `address` stands for.
    address : str
        The folder's path or URL for readers.
    """
    runs: dict[tuple[str, ...], list[list[_File]]] = {}
    read = [_read(path, folder) for path in sorted(files)]
    for file in sorted(read, key=lambda one: float(one.along_time["time"][0])):
        of_same_variables = runs.setdefault(tuple(sorted(file.arrays)), [])
        if of_same_variables and _goes_on(of_same_variables[-1], file):
            of_same_variables[-1].append(file)
        else:
            of_same_variables.append([file])
    joined = [_joined(run) for found in runs.values() for run in found]
    by_time: dict[str, dict[str, Any]] = {}
    for refs in joined:
        merged = by_time.setdefault(refs["time/0"] + refs["time/.zattrs"], {})
        common = _common([json.loads(one[".zattrs"]) for one in (merged, refs) if one])
        merged |= refs | {".zattrs": _text(common)}
    return [
        {"version": 1, "templates": {FOLDER: address}, "refs": dict(sorted(refs.items()))} for refs in by_time.values()
    ]


def _read(path: Path, folder: Path) -> _File:
    from kerchunk.hdf import SingleHdf5ToZarr

    place = "{{" + FOLDER + "}}/" + path.relative_to(folder).as_posix()
    with h5py.File(path) as file, closing(SingleHdf5ToZarr(file, str(path), inline_threshold=0)) as translator:
        found = translator.translate()["refs"]
        arrays, attributes = _metadata(found, ".zarray"), _metadata(found, ".zattrs")
        along = {
            name: file[name][...] for name in arrays if attributes[name][_DIMS][:1] == ["time"] and _small(file[name])
        }
    chunks: dict[str, dict[str, Any]] = {}
    for key, value in found.items():
        name, _, last = key.rpartition("/")
        if not last.startswith(".z"):
            chunks.setdefault(name, {})[last] = [place, *value[1:]] if isinstance(value, list) else value
    return _File(arrays, attributes, chunks, along)


def _metadata(found: Mapping[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """The parsed metadata of a kind, by array; those of the group have no name."""
    return {key.rpartition("/")[0]: json.loads(found[key]) for key in found if key.rpartition("/")[2] == kind}


def _small(data: h5py.Dataset) -> bool:
    """Whether an array along time has at most two values a step, as time and its bounds."""
    return bool(data.ndim == 1 or (data.ndim == 2 and data.shape[1] == 2))


def _goes_on(run: Sequence[_File], file: _File) -> bool:
    """Whether a file's chunks continue those of the files before it."""
    first = run[0]
    if first.attributes["time"] != file.attributes["time"]:
        return False
    for name in file.arrays.keys() - file.along_time.keys():
        before, after, axis = dict(first.arrays[name]), dict(file.arrays[name]), first.axis(name)
        for shape in (before, after) if axis is not None else ():
            shape["shape"] = [size for dim, size in enumerate(shape["shape"]) if dim != axis]
        if before != after or (axis is not None and any(one.days % before["chunks"][axis] for one in run)):
            return False
    return True


def _joined(run: Sequence[_File]) -> dict[str, Any]:
    """The references of files that follow each other."""
    first, days = run[0], sum(file.days for file in run)
    refs: dict[str, Any] = {".zgroup": _text({"zarr_format": 2})}
    refs[".zattrs"] = _text(_common([file.attributes[""] for file in run]))
    for name, array in first.arrays.items():
        axis = first.axis(name)
        refs[f"{name}/.zattrs"] = _text(first.attributes[name])
        if name in first.along_time:
            refs |= _inline(name, np.concatenate([file.along_time[name] for file in run]))
            continue
        shape = [days if dim == axis else size for dim, size in enumerate(array["shape"])]
        refs[f"{name}/.zarray"] = _text({**array, "shape": shape})
        if axis is None:
            refs |= {f"{name}/{key}": value for key, value in first.chunks.get(name, {}).items()}
            continue
        begun = 0
        for file in run:
            for key, value in file.chunks.get(name, {}).items():
                place = [int(number) for number in key.split(".")]
                place[axis] += begun // array["chunks"][axis]
                refs[f"{name}/{'.'.join(map(str, place))}"] = value
            begun += file.days
    return refs


def _inline(name: str, values: np.ndarray) -> dict[str, str]:
    """An array with its values in the reference itself, in one compressed chunk."""
    metadata = {
        "zarr_format": 2,
        "shape": list(values.shape),
        "chunks": list(values.shape),
        "dtype": values.dtype.str,
        "compressor": {"id": "zlib", "level": 9},
        "filters": None,
        "fill_value": None,
        "order": "C",
    }
    content = base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode()
    return {f"{name}/.zarray": _text(metadata), f"{name}/{'.'.join('0' * values.ndim)}": f"base64:{content}"}


def _common(attributes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The attributes that all files share: not the tracking id."""
    return {name: value for name, value in attributes[0].items() if all(one.get(name) == value for one in attributes)}


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True)
