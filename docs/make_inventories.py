"""Writes docs/assets/inventories: where the documents of other packages describe what our API page names.

``python docs/make_inventories.py`` writes a file in Sphinx's format for each package. The names are listed here, with
the pages of the packages' own documents, and are looked up in the installed packages.
"""

from __future__ import annotations

import pydoc
import zlib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "assets" / "inventories"


class Documents(NamedTuple):
    """The documents of a package: their address, the page of a name, and names by their kind."""

    address: str  # as mkdocs.yml has it
    page: str  # `{name}` and `{module}` stand for a name's own
    classes: str
    functions: str = ""
    pages: tuple[tuple[str, str], ...] = ()  # of names that are not on their `page`
    aliases: tuple[tuple[str, str], ...] = ()  # other names, of classes


DOCUMENTS = {
    "dask": Documents(
        "https://docs.dask.org/en/stable/", "generated/{name}.html", "dask.array.Array", "dask.array.map_blocks"
    ),
    "distributed": Documents("https://distributed.dask.org/en/stable/", "api.html", "distributed.Client"),
    "luigi": Documents(
        "https://luigi.readthedocs.io/en/stable/",
        "api/{module}.html",
        "luigi.task.Task luigi.parameter.Parameter luigi.target.Target luigi.execution_summary.LuigiStatusCode",
        "luigi.interface.build",
        aliases=(("luigi.Task", "luigi.task.Task"), ("luigi.Parameter", "luigi.parameter.Parameter")),
    ),
    "numpy": Documents(
        "https://numpy.org/doc/stable/",
        "reference/generated/{name}.html",
        "numpy.ndarray numpy.dtype",
        pages=(("numpy.dtype", "reference/generated/numpy.dtype.html"),),
    ),
    "pandas": Documents(
        "https://pandas.pydata.org/docs/", "reference/api/{name}.html", "pandas.DataFrame pandas.Index pandas.Series"
    ),
    "python": Documents(
        "https://docs.python.org/3/",
        "library/stdtypes.html",
        "str int float bool bytes list tuple dict set frozenset pathlib.Path typing.Any typing.ClassVar typing.Literal "
        "collections.abc.Callable collections.abc.Collection collections.abc.Hashable collections.abc.Iterable "
        "collections.abc.Iterator collections.abc.Mapping collections.abc.Sequence ValueError TypeError OSError "
        "RuntimeError FileNotFoundError contextlib.AbstractContextManager logging.Logger",
        pages=(
            ("int float bool", "library/functions.html"),
            ("pathlib.Path", "library/pathlib.html"),
            ("typing.Any typing.ClassVar typing.Literal", "library/typing.html"),
            ("ValueError TypeError OSError RuntimeError FileNotFoundError", "library/exceptions.html"),
            ("contextlib.AbstractContextManager", "library/contextlib.html"),
            ("logging.Logger", "library/logging.html"),
            (
                " ".join(
                    f"collections.abc.{name}"
                    for name in ("Callable", "Collection", "Hashable", "Iterable", "Iterator", "Mapping", "Sequence")
                ),
                "library/collections.abc.html",
            ),
        ),
    ),
    "xarray": Documents(
        "https://docs.xarray.dev/en/stable/",
        "generated/{name}.html",
        "xarray.Dataset xarray.DataArray",
        "xarray.open_zarr xarray.open_dataset",
    ),
}


def inventory(package: str, documents: Documents) -> bytes:
    """Return an inventory in Sphinx's format, version 2.

    Raises LookupError for a name that the installed package does not have.
    """
    pages = {name: page for names, page in documents.pages for name in names.split()}
    lines = []
    for role, names in (("class", documents.classes), ("function", documents.functions)):
        for name in names.split():
            if pydoc.locate(name) is None:
                raise LookupError(f"{package}: there is no {name}")
            page = pages.get(name, documents.page).format(name=name, module=name.rpartition(".")[0])
            lines.append(f"{name} py:{role} 1 {page}#{name} -\n")
    for alias, name in documents.aliases:
        if pydoc.locate(alias) is not pydoc.locate(name):
            raise LookupError(f"{package}: {alias} is not {name}")
        page = documents.page.format(name=name, module=name.rpartition(".")[0])
        lines.append(f"{alias} py:class 1 {page}#{name} -\n")
    head = (
        f"# Sphinx inventory version 2\n# Project: {package}\n# Version: \n# The remainder is compressed using zlib.\n"
    )
    return head.encode() + zlib.compress("".join(sorted(lines)).encode(), 9)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for package, documents in DOCUMENTS.items():
        (FOLDER / f"{package}.inv").write_bytes(inventory(package, documents))
