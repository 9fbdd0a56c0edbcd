"""Finding datasets: making, reading and searching catalogues of intake-esm and xscen, and opening the matches.

Imports `config` and `science`. Gives `tasks` a `Match` for each dataset, and its data lazily (`open_match`),
its fixed fields (`open_fixed`) and its grid mapping (`open_grid_mapping`).
"""

from __future__ import annotations

from espo_luigi.catalog.build import CatalogReport, make_catalog
from espo_luigi.catalog.open import open_fixed, open_grid_mapping, open_match
from espo_luigi.catalog.read import Asset, read_catalogue
from espo_luigi.catalog.search import Catalog, Match, derived_otherwise, warn_of_dropped
