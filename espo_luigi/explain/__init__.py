"""Why a value of a product is what it is: its way from the raw files, and an audit of products by sample.

| module | what it has |
|---|---|
| `cells` | the land cells of a run, and their series, made by the rules' own functions |
| `mapping` | the numbers of detrended quantile mapping of a single day |
| `values` | the values of each step of a way, frozen |
| `steps` | the steps of an adjusted variable |
| `way` | a whole way, and the comparison with the product |
| `sentences`, `figure` | a way as text, and as a figure |
| `audit` | a sample of cells, from the raw files to the products |

Imports `tasks` and what is below. The command `espo explain` uses it.
"""
