"""Memory of the rules, as jobs of the local engine: it follows the size of a block, not the number of cells."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import production
from production_input import make_input, region_of

CELLS = 1000, 5000


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "first_year", "all_rules"),
    [
        pytest.param("2024", 1991, False, id="2024"),
        pytest.param("2024", 1950, True, id="2024 with flags and outcomes", marks=pytest.mark.long),
        pytest.param("v2", 1951, True, id="v2 with flags and outcomes", marks=pytest.mark.long),
    ],
)
def test_no_rule_takes_more_memory_for_more_cells(name: str, first_year: int, all_rules: bool, tmp_path: Path) -> None:
    workflow = replace(production.WORKFLOWS[name], first_year=first_year)
    runs = []
    for wanted in CELLS:
        folder = tmp_path / f"cells{wanted}"
        region, cells = region_of(wanted, 125, workflow.pole)
        size = production.Size(region, cells, last_year=2020, all_rules=all_rules)
        make_input(folder / "raw", region, size.last_year)
        production.configure(folder, workflow, size)
        runs.append(production.run_chain(folder, size, cores=2))
    small, large = runs
    # A rule that holds its piece in memory takes more: at least a variable of the cells that were added.
    days = 365 * (2021 - first_year)
    most = 4 * days * (large.size.cells - small.size.cells) / 2
    peaks = {rule: (small.rules[rule]["peak"], of_large["peak"]) for rule, of_large in large.rules.items()}
    grown = {rule: [f"{peak / 2**20:.0f} MiB" for peak in two] for rule, two in peaks.items() if two[1] - two[0] > most}
    assert not grown
    assert {"Regrid", "Train", "Adjust"} <= peaks.keys()
