"""Section `downscaling`: adjusting on a coarse grid, and how the result comes to the reference's cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from espo_luigi.config.bias_adjustment import validated_by
from espo_luigi.downscaling.base import DOWNSCALERS, downscaler_named
from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.fields import ByFileName, NothingIsEmpty, Number, OmitDefault, Section, find_file
from espo_luigi.files import open_regular

Edges = tuple[tuple[float, ...], tuple[float, ...]]
# The word for the grid of each model.
MODEL = "model"
# Degrees; a step divides 180 up to this part of it.
_ROUND_OFF = 1e-6


def _as_grid(value: Any, info: ValidationInfo) -> Any:
    expected = f"expected the width of the coarse grid's cells, degrees, a file that has its cells, or {MODEL}"
    if not isinstance(value, str) or value == MODEL:
        return value
    from espo_luigi.science.coarse import edges_in  # here, as a configuration is loaded without xarray
    from espo_luigi.science.netcdf import load_netcdf

    path = find_file(value, (info.context or {}).get("folders", ()))
    try:
        with open_regular(path) as file:
            return edges_in(load_netcdf(file, without=["time"]))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); {expected}") from error
    except DataError as error:
        raise ValueError(f"{path}: {error}") from error


def _divides(grid: float | Edges | str) -> float | Edges | str:
    if isinstance(grid, float | int) and (not 0 < grid <= 30 or abs(180 / grid - round(180 / grid)) > _ROUND_OFF):
        raise ValueError(
            f"cells begin at whole multiples; expected degrees of which 180 is one, up to 30, got {grid:g}"
        )
    return grid


CoarseCells = Annotated[Number | Edges | Literal["model"], BeforeValidator(_as_grid), AfterValidator(_divides)]


def _known(name: str) -> str:
    try:
        downscaler_named(name)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return name


def _of_the_downscaler(value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Validate arguments by the model of the downscaler."""
    if (name := info.data.get("method")) is None:  # which is wrong
        return value
    return validated_by(downscaler_named(name).Arguments, name, value, info)


class Downscaling(Section):
    """How a variable is downscaled."""

    method: Annotated[str, AfterValidator(_known)] = Field(
        description=f"the downscaler: {', '.join(DOWNSCALERS)}, or an installed package's"
    )
    given: Annotated[SerializeAsAny[Section], WrapValidator(_of_the_downscaler)] = Field(
        default_factory=dict,
        alias="arguments",
        validate_default=True,
        description="keyword arguments of the downscaler",
    )


class DownscalingSection(Downscaling):
    """Section `downscaling`: simulations are adjusted on a coarse grid, and downscaled afterwards."""

    grid: CoarseCells = Field(
        description="the width of the coarse grid's cells, degrees, which begin at whole multiples of it; a netCDF "
        "file, whose latitudes and longitudes (1-D) are those of its cells; or `model`, each simulation's own grid"
    )
    least_share: Annotated[Number, Field(ge=0, le=1)] = OmitDefault(
        "the part of a coarse cell that the reference's cells have to cover; cells of others take the nearest", 0.1
    )
    variables: Annotated[ByFileName[Downscaling], NothingIsEmpty] = OmitDefault(
        "variables that are downscaled otherwise", {}
    )

    def of(self, variable: str) -> Downscaling:
        """Return how a variable is downscaled."""
        return self.variables.get(variable, self)

    def ways(self, variables: Mapping[str, Any] | tuple[str, ...]) -> Iterator[tuple[str, str, Downscaling]]:
        """Yield of each variable its name, the key of its section, and the section."""
        for name in variables:
            key = f"downscaling.variables.{name}" if name in self.variables else "downscaling"
            yield name, key, self.of(name)
