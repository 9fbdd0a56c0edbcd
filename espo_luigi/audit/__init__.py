"""Why a value of a product is what it is, and an audit of products by sample: values made again from the raw files.

| module | what it has |
|---|---|
| `cells` | the land cells of a run, and their series, made by the rules' own functions |
| `value` | the steps of a value from the raw cells to the product, and the comparison with the product |
| `shown` | these steps as a table, as JSON and as a figure |
| `sample` | a random sample of cells, compared with the products |
| `validate` | the checks of `espo validate` |
| `integrity` | whether files are whole, and belong to products |
| `outcomes` | whether indicators, and statistics of them, are in order, and what the products give |

Imports `tasks` and what is below. The command `espo explain` uses it.
"""
