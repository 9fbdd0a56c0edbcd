"""What the adjusted variables allow: consistent temperatures, and variables derived after the adjustment."""

from typing import Any

import pytest

from espo_luigi.config import load
from espo_luigi.errors import ConfigurationError


@pytest.fixture()
def with_variables(content: dict[str, Any], write: Any) -> Any:
    """A function that loads the small configuration with adjusted variables and a section `clean_up`."""

    how = content["biasadjust"]["variables"]["tasmax"]

    def loaded(adjusted: str, **clean_up: Any) -> Any:
        content["biasadjust"]["variables"] = dict.fromkeys(adjusted.split(), how)
        for side in ("reference", "simulation"):
            search = content["extraction"][side]["search_data_catalogs"]
            search["variables_and_freqs"] = dict.fromkeys(adjusted.split(), "D")
        content.pop("off-diag", None)
        content["clean_up"] = clean_up
        return load([write(content)])

    return loaded


@pytest.mark.parametrize(
    ("adjusted", "how", "products"),
    [
        ("tas", None, "tas"),
        ("ozone pr", None, "ozone pr"),
        ("tasmax", None, "tasmax"),
        ("dtr", None, "dtr"),
        ("tasmax dtr pr", "derived", "tasmax dtr pr tasmin"),
        ("tasmax tasmin", "swap", "tasmax tasmin"),
        ("tasmax tasmin dtr", "derived", "tasmax tasmin dtr"),
    ],
)
def test_temperatures_are_made_consistent_where_there_are_two(
    with_variables: Any, adjusted: str, how: str | None, products: str
) -> None:
    config = with_variables(adjusted)
    assert config.consistency == how and config.published == products.split()


@pytest.mark.parametrize("how", ["derived", "swap", "dqm-dtr"])
def test_a_way_that_is_asked_for_needs_its_variables(with_variables: Any, how: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"`clean_up\.temperatures: {how}` takes the adjusted .*leave the key"
    ):
        with_variables("tasmax pr", temperatures=how)
    assert with_variables("pr", temperatures=how).consistency is None


@pytest.mark.parametrize(
    ("derive", "made"),
    [
        (["hurs", "tdps"], {"hurs": ("tas", "huss", "ps"), "tdps": ("huss", "ps")}),
        ({"hurs": {"from": ["ps", "huss", "tas"]}}, {"hurs": ("ps", "huss", "tas")}),
        ({"tdps": {}}, {"tdps": ("huss", "ps")}),
    ],
)
def test_variables_are_derived_from_what_is_adjusted(with_variables: Any, derive: Any, made: Any) -> None:
    config = with_variables("tas huss ps", derive=derive)
    assert dict(config.derived) == made and config.published == ["tas", "huss", "ps", *made]
    assert set(config.needed_for(["tdps"])) <= {"huss", "ps"} or "tdps" not in made
    dumped = config.model_dump(mode="json", by_alias=True)["clean_up"]
    assert set(dumped["derive"]) == set(made)


def test_without_derived_variables_nothing_of_them_is_in_a_dump(with_variables: Any) -> None:
    assert "derive" not in with_variables("tas").model_dump(mode="json", by_alias=True)["clean_up"]


def test_what_is_derived_from_tasmin_needs_what_tasmin_is_made_of(with_variables: Any) -> None:
    config = with_variables("tasmax dtr pr", derive=["tas"])
    assert config.derived == {"tas": ("tasmax", "tasmin")} and config.needed_for(["tas"]) == ["tasmax", "dtr"]


@pytest.mark.parametrize(
    ("derive", "said"),
    [
        (["hurz"], r"`clean_up\.derive\.hurz`: there is no way to derive hurz; expected .*did you mean hurs"),
        (["tas"], r"`clean_up\.derive\.tas`: tas is adjusted itself\. Leave it out"),
        (["sfcWind"], r"`clean_up\.derive\.sfcWind`: sfcWind is derived from uas, vas, which have to be adjusted; "),
        ({"hurs": {"from": ["tas", "tdps"]}}, r"`clean_up\.derive\.hurs`: hurs is derived from tas, tdps, which have"),
        ({"hurs": {"from": ["tas", "ps"]}}, r"`clean_up\.derive\.hurs\.from`: got tas, ps; expected tas, huss, ps; or"),
        ({"hurs": {"of": ["tas"]}}, r"`clean_up\.derive\.hurs\.of`.*config\.yml, line"),
        ("hurs", r"`clean_up\.derive`.*config\.yml, line"),
    ],
)
def test_what_cannot_be_derived_is_refused_by_its_key(with_variables: Any, derive: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        with_variables("tas huss ps", derive=derive)


def test_a_mask_of_tasmin_needs_a_tasmin(with_variables: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"`clean_up\.problems` masks .*there is no tasmin .*has tas, pr"):
        with_variables("tas pr", problems=["an_id"])
    assert with_variables("tasmax dtr", problems=["an_id"]).clean_up.problems == ("an_id",)
