"""A changed configuration makes stale the rules whose science gets other arguments, the rules that follow, no more."""

import dataclasses
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import luigi
import pytest
import xarray as xr
from complete_demo import NOLEAP, OF_DOWNSCALING, OTHER_RULES, complete_all, edit, in_order, publish
from demo_runs import CONFIG, use
from luigi.configuration import get_config
from pydantic import BaseModel

from espo_luigi import tasks
from espo_luigi.config import RunConfig, load
from espo_luigi.config.downscaling import DownscalingSection
from espo_luigi.config.schema import fingerprint
from espo_luigi.driver.graph import Graph
from espo_luigi.errors import CatalogError, ConfigurationError
from espo_luigi.science.coarse import CoarseGrid
from espo_luigi.tasks import (
    adjustment,
    diagnostics,
    downscaling,
    espo_2024,
    inputs,
    partition,
    product,
    production,
    reference,
    report,
    simulation,
)
from espo_luigi.tasks import context as context_module
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import RunContext, forget
from espo_luigi.tasks.inputs import InputTask
from espo_luigi.tasks.make import rules
from espo_luigi.tasks.ports import InputPort, ports_of

MODULES = (
    adjustment,
    diagnostics,
    downscaling,
    espo_2024,
    inputs,
    partition,
    product,
    production,
    reference,
    report,
    simulation,
)
HOMES = tuple(f"espo_luigi.{room}" for room in ("science", "methods", "downscaling"))
# Keys that say where things are, and how they are computed.
PLACES = re.compile(
    r"paths\.|dask\.|logging\.|demo\.folder|.*\.data_catalogs\b|extraction\.on_input_problem|clean_up\.on_impossible|"
    r"keep$"  # the archives that are kept have the values of the stores that they are made of
)


class Stand:
    """Stands for a dataset, a file and the functions of `science`: records the arguments of each call."""

    def __init__(self, calls: list[str], name: str) -> None:
        self.calls, self.name = calls, name

    def __getattr__(self, name: str) -> "Stand":
        return Stand(self.calls, f"{self.name}.{name}")

    def __call__(self, *arguments: Any, **keywords: Any) -> "Stand":
        self.calls.append(f"{self.name}({_plain(arguments)}, {_plain(keywords)})")
        return Stand(self.calls, f"{self.name}()")

    def __iter__(self) -> Iterator["Stand"]:
        return iter((Stand(self.calls, "one"), Stand(self.calls, "other")))

    def __getitem__(self, key: Any) -> "Stand":
        return Stand(self.calls, f"{self.name}[{_plain(key)}]")

    def __or__(self, other: Any) -> "Stand":
        return self("|", other)

    def __len__(self) -> int:
        return 2

    def __contains__(self, _: object) -> bool:
        return False

    def __lt__(self, _: object) -> bool:
        return False

    __gt__ = __ge__ = __lt__
    __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = lambda self, _: self

    def __repr__(self) -> str:
        return self.name


def _plain(value: Any) -> Any:
    """The value with mappings as dictionaries, whose order does not count."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in sorted(value, key=str)}
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value


class Science:
    """A module of `science`: its constants, and a stand-in for each function."""

    def __init__(self, calls: list[str], module: Any) -> None:
        self.calls, self.module = calls, module

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.module, name)
        return Stand(self.calls, name) if callable(real) else real


class Found(Stand):
    """A dataset with daily files, so that no task reads days that `Daily` has made."""

    hours: Mapping[str, str] = MappingProxyType({})


class Searched(RunContext):
    """A context whose searches find a single dataset each."""

    calls: list[str]

    def simulation(self, sim_id: str) -> Any:
        return Found(self.calls, "simulation")

    def reference(self) -> Any:
        return Found(self.calls, "reference")


@pytest.fixture()
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `science` was given, since it was cleared."""
    calls: list[str] = []
    for module in MODULES:
        for name, value in list(vars(module).items()):
            home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "")
            if str(home).startswith(HOMES) and (inspect.ismodule(value) or callable(value)) and value is not CoarseGrid:
                stand = Science(calls, value) if inspect.ismodule(value) else Stand(calls, name)
                monkeypatch.setattr(module, name, stand)
    # Whether a product with impossible values is published changes none of its values.
    product.gaps.with_possible_values = lambda made, land, **_: made
    for module in (reference, simulation):
        monkeypatch.setattr(module, "told", lambda rows, of: {})
    monkeypatch.setattr(inputs, "examine_match", Stand(calls, "examine_match"))
    for name in ("open_match", "open_fixed"):
        monkeypatch.setattr(context_module, name, Stand(calls, name))
    for name in ("open_grid", "on_grid_of"):
        monkeypatch.setattr(simulation, name, Stand(calls, name))
    monkeypatch.setattr(Searched, "calls", calls, raising=False)
    return calls


def of_espo_g6(monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    for name in ("OUTPUT", "SCRATCH", "CATALOGS"):
        monkeypatch.setenv(f"ESPO_{name}", f"/data/{name}")
    folder = CONFIG.parent / "espo-g6"
    return load([folder / "config.yml", folder / "paths.yml"])


def keys_of(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key that holds a value; definitions of properties, which are handed on whole, count as a single key."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield from keys_of(getattr(value, name), (*at, field.alias or name))
    elif isinstance(value, Mapping) and value and at[-1] != "properties":
        for name in value:
            yield from keys_of(value[name], (*at, name))
    elif value is not None and (at[-1] != "repairs" or value):  # an empty table gives no row to change
        yield at


def other(value: Any) -> Any:
    """A different value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    known = {"DetrendedQuantileMapping": "EmpiricalQuantileMapping", "auto": "xsdba"}
    if isinstance(value, str) and value in known:  # a method or an engine of an unknown name has no tasks
        return known[value]
    if isinstance(value, str):
        return str(int(value) + 1) if value.isdigit() else f"{value}x"
    if isinstance(value, Mapping):
        return {**value, "another": 1}
    if isinstance(value, tuple | list):
        return type(value)([*map(other, value)]) if value else type(value)(["another"])
    return Path("/another") if isinstance(value, Path) else "another"


def changed(value: Any, key: tuple[str, ...]) -> Any:
    """Return the value with a key changed; unlike in a file, values derived from that key stay."""
    if not key:
        return other(value)
    if isinstance(value, BaseModel):
        name = next(name for name, field in type(value).model_fields.items() if (field.alias or name) == key[0])
        return value.model_copy(update={name: changed(getattr(value, name), key[1:])})
    return MappingProxyType({**value, key[0]: changed(value[key[0]], key[1:])})


def wildcards_of(config: RunConfig) -> dict[str, str]:
    """Wildcards of a task of any rule."""
    domains = list(config.off_diag.domains) if config.off_diag else []
    return {
        "sim_id": (*config.clean_up.problems, "SIM")[0],
        "pool": "SIM",
        "piece": next(iter(config.custom.regions)),
        "var": next(iter(config.biasadjust.variables)),
        "calendar": "noleap",
        "diag_domain": (*domains, "")[0],
        "level": "diag_sim_prop",
    }


def examples(config: RunConfig, wildcards: dict[str, str]) -> list[EspoTask]:
    """A task of each rule that the configuration has."""
    names = {rule: [name for name, parameter in rule.get_params() if parameter.significant] for rule in rules()}
    wanted = [rule for rule in rules() if rule not in OTHER_RULES - OF_DOWNSCALING]
    coarse = wildcards | {"piece": partition.COARSE}
    of = {rule: coarse if rule is tasks.CoarseReference else wildcards for rule in wanted}
    found = [rule(**{name: of[rule][name] for name in names[rule]}) for rule in wanted]
    return [one for one in found if config.diagnostics or not isinstance(one, diagnostics.DiagnosticsTask)]


def given(task: EspoTask, calls: list[str]) -> list[str]:
    """Return the arguments of the rule's science, and the tasks whose outputs it is given."""
    calls.clear()
    if isinstance(task, InputTask):
        task.problems()
    elif isinstance(task, tasks.FlagDetails):
        task.details(Stand(calls, "final"), Stand(calls, "checks"))  # type: ignore[arg-type]
    elif type(task).compute is not EspoTask.compute:
        stands: dict[str, Any] = {}
        wiring = []
        for name, _ in ports_of(type(task), InputPort):
            bound = getattr(task, name)
            stand = Stand(calls, name)
            stands[name.removeprefix("in_")] = [stand] * len(bound) if isinstance(bound, list) else stand
            wiring += [one.task.task_id for one in (bound if isinstance(bound, list) else [bound])]
        task.compute(**stands)
        task.layout(Stand(calls, "output"))  # type: ignore[arg-type]
        return [*wiring, *calls]
    return list(calls)


@dataclasses.dataclass
class Look:
    """The arguments of the rules' science under a configuration, and the fingerprints that their markers would have."""

    arguments: dict[str, list[str]]
    read: dict[str, list[str]]


@pytest.fixture()
def look(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[RunConfig, dict[str, str]], Look]:
    current: list[RunContext] = []
    found: list[EspoTask] = []
    for module in ("base", "context", "all"):
        monkeypatch.setattr(f"espo_luigi.tasks.{module}.context", lambda: current[0])

    def at(config: RunConfig, wildcards: dict[str, str]) -> Look:
        current[:] = [Searched(config)]
        if not found:
            luigi.task_register.Register.clear_instance_cache()
            found.extend(examples(config, wildcards))
        for task in found:  # as if it were new: the configuration decides what its inputs are
            for name in [name for name in vars(task) if name.startswith("in_")]:
                del vars(task)[name]
        read = {task.get_task_family(): [fingerprint(config, key) for key in task.reading()] for task in found}
        return Look({task.get_task_family(): given(task, calls) for task in found}, read)

    return at


@pytest.mark.parametrize("which", ["demo", pytest.param("espo-g6", marks=pytest.mark.long)])
def test_a_key_that_alters_the_arguments_of_a_rules_science_is_among_the_keys_it_reads(
    which: str, look: Callable[[RunConfig, dict[str, str]], Look], monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings.simplefilter("ignore", UserWarning)  # pydantic's, of values that it has not validated
    config = of_espo_g6(monkeypatch) if which == "espo-g6" else load([CONFIG / "config.yml", CONFIG / "paths.yml"])
    section = DownscalingSection.model_validate({"grid": 1, "method": "QPLAD", "arguments": {"window": 15}})
    config = config.model_copy(update={"downscaling": section})
    wildcards = wildcards_of(config)
    before, unsaid, altering = look(config, wildcards), [], 0
    for key in keys_of(config):
        try:
            after = look(changed(config, key), wildcards)
        except (
            AttributeError,
            KeyError,
            ConfigurationError,
        ):  # the key names what is nowhere then, which the loader refuses
            continue
        for rule, arguments in before.arguments.items():
            differs, says_so = after.arguments[rule] != arguments, after.read[rule] != before.read[rule]
            altering += differs
            # `keep` decides which of two stores with the same values is read.
            unsaid += [(".".join(key), rule)] if differs and not says_so and key != ("keep",) else []
            assert not (says_so and PLACES.match(".".join(key))), f"{key} makes {rule} stale"
    assert unsaid == []
    assert altering > 100


def stale() -> set[str]:
    luigi.task_register.Register.clear_instance_cache()
    return {task.task_id for task in Graph([tasks.All()]) if isinstance(task, EspoTask) and task.stale()}


def following(is_first: Callable[[EspoTask], bool]) -> set[str]:
    """The tasks that are first, and all that is made of them."""
    found: set[str] = set()
    for task in in_order(tasks.All()):
        if is_first(task) or {needed.task_id for needed in task.requires() if needed.is_material} & found:
            found.add(task.task_id)
    return found


def fewer_quantiles(content: Any) -> None:
    content["biasadjust"]["variables"]["tasmax"]["training_args"]["xclim_train_args"]["nquantiles"] = 40


def test_fewer_quantiles_make_the_training_of_that_variable_and_the_following_rules_stale(complete_demo: Path) -> None:
    edit(complete_demo / "config.yml", fewer_quantiles)
    concerned = stale()
    assert concerned == following(lambda task: isinstance(task, tasks.Train) and task.var == "tasmax")
    rules = {one.partition("_")[0] for one in concerned}
    assert rules >= {"Train", "Adjust", "Move", "ConcatenationFinal", "OffDiagScenPropMeas"}
    assert not any(one.startswith(("Regrid_", "RefDefault_", "OffDiagRefProp_")) for one in concerned)
    assert all(task.complete() for task in Graph([tasks.All()]))
    get_config().set("espo", "rerun", "stale")
    assert {task.task_id for task in Graph([tasks.All()]) if not task.complete()} - {"All"} >= concerned
    assert {task.task_id for task in in_order(tasks.All()) if not task.complete()} == concerned


def test_a_store_made_of_stale_inputs_under_a_new_configuration_is_stale(complete_demo: Path) -> None:
    edit(complete_demo / "config.yml", fewer_quantiles)
    luigi.task_register.Register.clear_instance_cache()
    adjusted = next(task for task in in_order(tasks.All()) if isinstance(task, tasks.Adjust) and task.var == "tasmax")
    publish(adjusted, adjusted.marker())
    assert adjusted.stale() == ["biasadjust.variables.tasmax.training_args"]
    publish(adjusted.in_training[0].task, adjusted.in_training[0].task.marker())
    publish(adjusted, adjusted.marker())
    assert adjusted.stale() == []


def test_only_a_product_with_impossible_values_is_outdated_once_they_are_refused(
    complete_demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_impossible(how: str) -> None:
        edit(complete_demo / "config.yml", lambda content: content["clean_up"].update(on_impossible=how))
        luigi.task_register.Register.clear_instance_cache()

    def made_with(tasmax: float, piece: str) -> list[EspoTask]:
        """Publish the clean-up of a piece, of which one day in one cell has that value, and the rule that follows."""
        ds = xr.Dataset({"tasmax": (("time", "lat", "lon"), [[[290.0, tasmax]]], {"units": "K"})})
        ds = ds.assign_coords(time=xr.date_range("2030-07-01", periods=1), lat=[45.0], lon=[-74.0, -73.0])
        monkeypatch.setattr(product.finalize, "finish", lambda *_, **__: ds)
        cleaned = tasks.CleanUp(sim_id=NOLEAP, piece=piece)
        made = cleaned.compute([ds], ds[["lat", "lon"]].assign(land=ds["tasmax"][0] > 0))
        following = tasks.Move(sim_id=NOLEAP, piece=piece)
        publish(cleaned, cleaned.marker([made]))
        publish(following, following.marker())
        return [cleaned, following]

    on_impossible("warn")
    possible, impossible = (made_with(value, piece) for value, piece in ((300, "south"), (345, "middle")))
    assert not any(task.stale() for task in (*possible, *impossible))
    on_impossible("fail")
    assert [task.stale(files=False) for task in impossible] == [["clean_up.on_impossible"]] * 2
    assert not any(task.stale() for task in possible)


def test_comments_resources_and_paths_concern_nothing(complete_demo: Path, tmp_path: Path) -> None:
    with (complete_demo / "config.yml").open("a") as file:
        file.write("# a comment\n")
    get_config().set("Train", "memory", "120GB")
    (complete_demo / "final").rename(complete_demo / "elsewhere")
    edit(complete_demo / "paths.yml", lambda content: content["paths"].update(final=str(complete_demo / "elsewhere")))
    assert all(task.complete() for task in Graph([tasks.All()]))
    assert stale() == set()


def test_a_new_simulation_or_a_checks_threshold_makes_no_present_simulation_stale(complete_demo: Path) -> None:
    def change(content: Any) -> None:
        content["extraction"]["simulation"]["search_data_catalogs"]["other_search_criteria"]["source"].append("Third")
        content["health_checks"]["flags"]["tasmin"]["temperature_extremely_low"]["thresh"] = "-60 degC"

    edit(complete_demo / "config.yml", change)
    concerned = following(lambda task: isinstance(task, tasks.HealthChecks | InputTask))
    assert stale() == concerned
    assert {one.partition("_")[0] for one in concerned} == {"HealthChecks", "InputCheck", "RefInputCheck"}


def test_the_report_and_its_summaries_follow_the_products_that_they_show(
    complete_demo: Path, with_report: None
) -> None:
    complete_all()
    assert stale() == set() and tasks.Report().complete()
    edit(complete_demo / "config.yml", fewer_quantiles)
    concerned = stale()
    assert concerned == following(lambda task: isinstance(task, tasks.Train) and task.var == "tasmax")
    rules = {one.partition("_")[0] for one in concerned}
    assert rules >= {"Summaries", "NotCalibrated", "FlagDetails", "Report"}
    assert tasks.Report().complete()
    get_config().set("espo", "rerun", "stale")
    assert not tasks.Report().complete()
    get_config().set("espo", "rerun", "missing")
    shown = tasks.OffDiagRefProp(diag_domain="Highland")
    publish(shown, dataclasses.replace(shown.marker(), fingerprints={"another": "one"}))
    assert not tasks.Report().complete()


def test_raw_files_that_were_replaced_concern_their_simulation(complete_demo: Path, own_raw: Path) -> None:
    use([complete_demo / "config.yml", complete_demo / "paths.yml"], complete_demo)
    for task in in_order(tasks.All()):
        publish(task, task.marker())
    assert stale() == set()
    victim = next(task for task in in_order(tasks.All()) if isinstance(task, tasks.Extract))
    raw = victim.raw_files()[0]
    raw.write_bytes(raw.read_bytes() + b"more")
    forget()
    assert stale() == following(lambda task: task.raw() is not None and getattr(task, "sim_id", "") == victim.sim_id)
    assert victim.stale() and not victim.stale(files=False), "stale, but not outdated: no setting has changed"


def test_a_lost_reference_makes_no_simulation_look_changed(complete_demo: Path, own_raw: Path) -> None:
    use([complete_demo / "config.yml", complete_demo / "paths.yml"], complete_demo)
    complete_all()
    edit(
        complete_demo / "config.yml",
        lambda content: content["extraction"]["reference"]["search_data_catalogs"]["other_search_criteria"].update(
            title="Nobody has this"
        ),
    )
    with pytest.raises(CatalogError, match="ref"):
        context_module.context().reference()
    extracts = [task for task in in_order(tasks.All()) if isinstance(task, tasks.Extract)]
    assert extracts and not any(task.stale() for task in extracts)
    changed = tasks.Regrid(sim_id=NOLEAP, piece="south").stale()
    assert [key for key in changed if key.startswith("files of ")] == ["files of ESPO-DEMO_Demo-Land_NAM"]


def test_a_marker_without_parts_stands_for_the_whole_configuration(complete_demo: Path) -> None:
    reference_, regrid = (
        next(task for task in in_order(tasks.All()) if isinstance(task, rule))
        for rule in (tasks.ReferenceCalendar, tasks.Regrid)
    )
    publish(reference_, dataclasses.replace(reference_.marker(), fingerprints={}))
    publish(regrid, regrid.marker())
    assert (reference_.stale(), regrid.stale()) == ([], [])
    edit(complete_demo / "config.yml", fewer_quantiles)
    assert (reference_.stale(), regrid.stale()) == (["configuration"], ["configuration"])


def test_a_marker_of_the_domains_former_key_stands_for_the_domain(complete_demo: Path) -> None:
    extract = next(task for task in in_order(tasks.All()) if isinstance(task, tasks.Extract))
    marker = extract.marker()
    former = {re.sub(r"^domain\b", "custom.amno_region", key): was for key, was in marker.fingerprints.items()}
    assert former.keys() - marker.fingerprints.keys() == {"custom.amno_region"}
    publish(extract, dataclasses.replace(marker, fingerprints=former))
    assert extract.stale() == []

    def wider(content: dict[str, Any]) -> None:
        content.get("domain", content["custom"].get("amno_region"))["tile_buffer"] = 7

    edit(complete_demo / "config.yml", wider)
    assert extract.stale() == ["custom.amno_region"]


def test_another_production_makes_stale_what_it_may_alter(complete_demo: Path) -> None:
    rules = (tasks.Train, tasks.Adjust, tasks.CleanUp)
    found = {type(task): task for task in in_order(tasks.All()) if isinstance(task, rules)}
    assert len(found) == len(rules)
    for task in found.values():
        marker = task.marker()
        publish(task, dataclasses.replace(marker, fingerprints={**marker.fingerprints, "production": "institute-x"}))
        assert marker.fingerprints["production"] == "espo-2024" and "production" in task.stale()
        publish(task, marker)
    edit(complete_demo / "config.yml", lambda content: content.update(production="espo-2024"))
    assert stale() == set()


def test_a_key_that_came_after_a_store_makes_it_stale_once_it_is_given(complete_demo: Path) -> None:
    later = re.compile(r"regrid\.regrid_method|variables\.")
    found = {type(task): task for task in in_order(tasks.All())}
    for task in in_order(tasks.All()):
        marker = task.marker()
        kept = {key: was for key, was in marker.fingerprints.items() if not later.match(key)}
        publish(task, dataclasses.replace(marker, fingerprints=kept))
    assert stale() == set()
    edit(complete_demo / "config.yml", lambda content: content.update(regrid={"regrid_method": {"pr": "conservative"}}))
    assert "regrid.regrid_method" in found[tasks.Regrid].stale()
    # Its archive is kept, and what it was made of is deleted.
    assert "regrid.regrid_method" in found[tasks.ConcatenationFinal].stale(files=False)
    assert found[tasks.RefDefault].stale() == []


def test_stated_units_of_a_simulation_make_its_chain_stale_and_those_of_the_reference_all(complete_demo: Path) -> None:
    def stale(section: str, **how: Any) -> set[str]:
        edit(complete_demo / "config.yml", lambda content: content["extraction"][section].update(how))
        luigi.task_register.Register.clear_instance_cache()
        forget()
        products = [task for task in in_order(tasks.All()) if isinstance(task, tasks.ConcatenationFinal)]
        return {task.sim_id for task in products if task.stale()}

    assert stale("simulation", units=[{"id": NOLEAP, "variable": "pr", "units": "mm d-1"}]) == {NOLEAP}
    assert len(stale("reference", accumulation={"pr": "over_step"})) > 1
