"""Years in which models reach levels of warming, against xscen (tests/golden/make_warming.py)."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.outcomes.climatology import climatology
from espo_luigi.science.outcomes.warming import Period, Run, global_means, parse_global_means, reaching

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
SHARED = Path(__file__).parents[3] / "../shared/data"
LEVELS = (1.5, 2.0, 3.0, 4.0)
CanESM5 = {"mip_era": "CMIP6", "source": "CanESM5", "experiment": "ssp585", "member": "r1i1p1f1"}


def facets_of(text):
    return dict(zip(Run._fields, text.split("_"), strict=True))


def table_of(**series):
    return {
        Run(*name.split("_")): pd.Series(values, index=range(1850, 1850 + len(values)))
        for name, values in series.items()
    }


@pytest.mark.parametrize(("window", "base"), [(20, 1850), (30, 1850), (21, 1850), (20, 1981)])
def test_each_simulation_of_the_table_reaches_each_level_in_xscens_years(window, base):
    golden = pd.read_csv(GOLDEN / "warming-periods.csv")
    golden = golden[(golden.window == window) & (golden.base == base)].set_index("run")
    end = {1850: 1900, 1981: 2010}[base]
    warming = reaching(
        {run: facets_of(run) for run in golden.index}, LEVELS, global_means(), base=(base, end), window=window
    )
    ours = {(run, level): str(years.first) for run, of in warming.periods.items() for level, years in of.items()}
    theirs = {(run, level): golden.loc[run, str(level)] for run in golden.index for level in LEVELS}
    assert ours == {key: first for key, first in theirs.items() if first != "-"}
    assert all(years.last - years.first == window - 1 for of in warming.periods.values() for years in of.values())
    assert len(golden) == 288
    assert {label for label, of in warming.absent.items() if 4.0 in of} == {
        r for r, x in theirs if x == 4 and theirs[r, x] == "-"
    }


def test_the_years_of_a_level_are_those_that_xscen_takes():
    path = SHARED / "ensemble-tg/BCCAQv2+ANUSPLIN300_CCSM4_historical+rcp45_r2i1p1_1950-2100_tg_mean_YS.nc"
    if not path.is_file():
        pytest.skip("no ../shared/data/ensemble-tg beside the project")
    facets = {"mip_era": "CMIP5", "source": "CCSM4", "experiment": "historical+rcp45", "member": "r2i1p1"}
    warming = reaching({"CCSM4": facets}, [2], global_means(), any_member=True)
    with (
        xr.open_dataset(path, engine="h5netcdf") as ds,
        xr.open_dataset(GOLDEN / "warming-subset.nc", engine="h5netcdf") as golden,
    ):
        ours = climatology(ds.isel(lat=slice(2), lon=slice(3)), periods=[warming.periods["CCSM4"][2]])
        theirs = golden["tg_mean"].isel(warminglevel=0, drop=True).mean("time")
        xr.testing.assert_allclose(ours["tg_mean_clim_mean"].isel(horizon=0, drop=True), theirs, rtol=1e-5)


def test_a_member_without_a_row_is_named_with_the_members_that_have_one():
    warming = reaching({"mine": CanESM5 | {"member": "r99i1p1f1"}}, [2], global_means())
    assert warming.periods == {"mine": {}}
    assert "r99i1p1f1, but of members r1i1p1f1" in warming.absent["mine"][2]


def test_a_model_and_an_experiment_that_the_table_lacks_are_named():
    simulations = {"model": CanESM5 | {"source": "CanESM99"}, "experiment": CanESM5 | {"experiment": "ssp119"}}
    absent = reaching(simulations, [2], global_means()).absent
    assert absent["model"][2].endswith("it has no row of this model")
    assert absent["experiment"][2].endswith("it has ssp126, ssp245, ssp370, ssp585")


def test_a_model_that_never_warms_so_much_is_named_with_its_greatest_warming():
    table = table_of(CMIP6_A_ssp126_r1=[*[10.0] * 51, *np.linspace(10, 12.5, 200)])
    warming = reaching({"A": facets_of("CMIP6_A_ssp126_r1")}, [2, 4], table)
    assert warming.periods["A"] == {2: Period(2051, 2070)}
    assert warming.absent["A"] == {4: "stays below +4 K until 2100 (at most +2.38 K in 20 years)"}


def test_a_row_without_the_base_period_is_named():
    bnu = facets_of("CMIP5_BNU-ESM_rcp45_r1i1p1")
    assert (
        reaching({"BNU": bnu}, [2], global_means()).absent["BNU"][2]
        == "its row has no year of the base period 1850-1900"
    )
    assert reaching({"BNU": bnu}, [1], global_means(), base=(1981, 2010)).periods["BNU"]


def test_a_regional_simulation_warms_as_the_model_that_drives_it():
    regional = {"mip_era": "CMIP5", "source": "CRCM5", "driving_model": "CCCma-CanESM2", "experiment": "rcp85"}
    veg = {"driving_model": "EC-Earth-Consortium-EC-Earth3-Veg", "mip_era": "", "experiment": "ssp585"}
    simulations = {
        "CMIP5_CanESM2_rcp85_r1i1p1": regional | {"member": "r1i1p1"},
        "CMIP5_CanESM2_rcp85_r1-r10i1p1": regional | {"driving_member": "r1-r10i1p1"},
        "CMIP6_EC-Earth3-Veg_ssp585_r1i1p1f1": regional | veg | {"member": "r1i1p1f1"},
    }
    own = reaching({run: facets_of(run) for run in simulations}, LEVELS, global_means())
    assert reaching(simulations, LEVELS, global_means()) == own
    assert len({str(of) for of in own.periods.values()}) == 3


@pytest.mark.parametrize(
    ("window", "level", "first"), [(20, 2.625, 1902), (20, 5.125, 1912), (21, 2.5, 1901), (4, 4.625, 1918)]
)
def test_a_mean_of_exactly_the_level_does_not_reach_it_as_in_xscen(window, level, first):
    # The years are those of xscen.get_period_from_warming_level 0.15.2, with this table as tas_src.
    table = table_of(CMIP6_A_ssp126_r1=[*[10.0] * 51, *(10 + 0.25 * np.arange(1, 101))])
    warming = reaching({"A": facets_of("CMIP6_A_ssp126_r1")}, [level], table, window=window)
    assert warming.periods["A"][level] == Period(first, first + window - 1)


def test_a_gap_in_a_row_makes_no_window():
    means = np.array([*[10.0] * 51, *[np.nan] * 49, *np.linspace(12, 14, 151)])
    warming = reaching({"A": facets_of("CMIP6_A_ssp126_r1")}, [1.5], table_of(CMIP6_A_ssp126_r1=means))
    assert warming.periods["A"] == {1.5: Period(1950, 1969)}


def test_ones_own_table_is_csv_or_netcdf():
    text = b"# made by hand\nyear,CMIP7_A-LR_ssp-h_r1,CMIP7_My_Model_ssp-h_r1\n1851,10,11\n1850,9,\n"
    table = parse_global_means(text, "my.csv")
    assert table[Run("CMIP7", "A-LR", "ssp-h", "r1")].to_dict() == {1850: 9, 1851: 10}
    assert np.isnan(table[Run("CMIP7", "My_Model", "ssp-h", "r1")][1850])
    coords = {name: ("simulation", [value]) for name, value in CanESM5.items()}
    ds = xr.Dataset(
        {"tas": (("time", "simulation"), [[1.0], [2.0]])}, {"time": pd.to_datetime(["1850", "1851"]), **coords}
    )
    for engine in ("h5netcdf", "scipy"):
        content = ds.to_netcdf(engine=engine)
        assert parse_global_means(bytes(content), "my.nc")[Run(**CanESM5)].to_dict() == {1850: 1, 1851: 2}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a,b\n1,2\n",
        b"year,A_B\n1850,1\n",
        b"year,A_B_C_D\n1850,warm\n",
        b"\x00\xff\xfe",
        b"\x89HDF\r\n\x1a\nxx",
        b"year,A_B_C_D\n1850.5,x\n",
    ],
)
def test_a_table_in_another_format_is_named(content):
    with pytest.raises(
        DataError, match=r"^my\.csv is no table of yearly global temperatures .*Expected CSV with a column `year`"
    ):
        parse_global_means(content, "my.csv")


def test_a_table_with_a_simulation_or_a_year_twice_is_refused():
    with pytest.raises(DataError, match=r"my\.csv .* twice: 1850"):
        parse_global_means(b"year,A_B_C_D\n1850,1\n1850,2\n", "my.csv")
    buffer = io.BytesIO()
    coords = {name: ("simulation", [value] * 2) for name, value in CanESM5.items()}
    xr.Dataset({"tas": (("time", "simulation"), [[1.0, 2.0]])}, {"time": pd.to_datetime(["1850"]), **coords}).to_netcdf(
        buffer, engine="h5netcdf"
    )
    with pytest.raises(DataError, match="twice: CMIP6_CanESM5_ssp585_r1i1p1f1"):
        parse_global_means(buffer.getvalue(), "my.nc")
