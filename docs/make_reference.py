"""Writes the generated pages of docs/reference from the code, and fills the blocks of written pages.

``python docs/make_reference.py`` writes them; tests/test_site.py fails if they differ from the code. The generated
pages tell of rules, settings of luigi.cfg, keys, commands and DRS. docs/make_blocks.py has most of the blocks.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import luigi
from make_blocks import BLOCKS as OTHER_BLOCKS
from make_blocks import DOCS, code, filled, sentence, table
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from espo_luigi import fields
from espo_luigi.commands.cli import espo as espo_command
from espo_luigi.config import RunConfig, bias_adjustment, downscaling, health_checks, regions
from espo_luigi.config.dialects import WITHOUT_EFFECT
from espo_luigi.driver.settings.espo import choices_of
from espo_luigi.driver.settings.sections import OPTION_NAMES, BatchSection, sge, slurm
from espo_luigi.driver.task import RESOURCE_NAMES
from espo_luigi.errors import FORMER_RULES
from espo_luigi.export.drs import FIELDS, Drs, load_drs, packaged
from espo_luigi.methods import xsdba
from espo_luigi.tasks import make
from espo_luigi.tasks.base import EspoTask, WildcardParameter
from espo_luigi.tasks.context import espo
from espo_luigi.tasks.ports import InputPort, OutputPort, ports_of

FOLDER = Path(__file__).parent / "reference"
MADE = "<!-- Made by docs/make_reference.py: change the code, then run the script. -->\n"
WIDTH = 92
# Close together: some graphs are wide.
_SPACED = '"flowchart": {"nodeSpacing": 12, "rankSpacing": 24, "useMaxWidth": true}'
DRAWN = f'%%{{init: {{{_SPACED}, "themeVariables": {{"fontSize": "18px"}}}}}}%%'


def pages() -> dict[str, str]:
    """Return the text of each generated page, by its file's name."""
    made = {"rules.md": rules(), "settings.md": settings(), "keys.md": keys(), "cli.md": commands(), "drs.md": drs()}
    return {name: f"{MADE}\n{text.strip()}\n" for name, text in made.items()}


# Rules


# The stages of the workflow of 2024 by the modules of their rules; then the rules of ESPO v2 that it lacks.
STAGES = {
    "Raw data": ("inputs", "daily", "simulation", "reference"),
    "Adjustment": (
        "adjustment",
        "downscaling",
    ),
    "Product": ("product", "export"),
    "Indicators and ensembles": ("outcomes", "ensembles"),
    "Properties and measures": ("diagnostics",),
    "Report and tests": ("report", "explorer", "perfect_model"),
}
V2 = "Of ESPO v2 only"
ONLY_V2 = (
    "MakeRef",
    "DiagExtract",
    "Swap",
    "Derive",
    "ConcatClean",
    "ConcatCleanPreswap",
    "DiagRef",
    "Diag",
    "Inversions",
)

# The title of the rules that ESPO-G has, and we do not.
GONE = "Rules of ESPO-G that have gone"


def rules() -> str:
    """The rules by stage, each after those that it needs."""
    found = in_order(make.rules())
    stages = {title: [rule for rule in found if stage_of(rule) == title] for title in [*STAGES, V2]}
    return "\n".join(
        [
            "# Rules\n",
            "A rule is a class of `espo_luigi.tasks`. `espo rules` lists the rules with the folders of your run.\n",
            "A *parameter* identifies a task of the rule: a simulation (`sim_id`), a pool of simulations (`pool`,",
            "of a single one but in ESPO v2), a region or slice (`piece`), a variable (`var`). An option in",
            "parentheses is a second name on the command line. Paths are those of the workflow of 2024; in a",
            "folder of ESPO v2, `espo rules RULE` shows its own. A *temporary* output is deleted once every task",
            "that needs it is complete. A task is stale if a key that it *reads* has changed since; `{var}` is the",
            "task's own, and `*` stands for the names below a key. The outputs of the needed rules count, too. The",
            "*resources* are defaults; `[Train]` of luigi.cfg changes those of `Train`",
            "([a rule's section](settings.md#a-rules-own-section)).\n",
            "In the graphs, an arrow leads from a rule to the rule that needs its outputs. Rules in rounded boxes",
            "belong to a different stage.\n",
            *(stage(title, of_stage, found) for title, of_stage in stages.items()),
            f"\n## {GONE}\n",
            "These rules of ESPO-G, and the last three of former releases, rechunked, moved, packed or summarised what",
            "other rules had written. Other rules do it now; names of final files are the same.\n",
            table(
                ["rule", "its work is done by"],
                [
                    [code(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()), ", ".join(map(code, rules))]
                    for name, rules in FORMER_RULES.items()
                ],
            ),
        ]
    )


def stage_of(rule: type[EspoTask]) -> str:
    """The title of a rule's stage."""
    module = rule.__module__.rpartition(".")[2]
    return V2 if rule.__name__ in ONLY_V2 else next(title for title, modules in STAGES.items() if module in modules)


def stage(title: str, of_stage: Sequence[type[EspoTask]], found: Sequence[type[EspoTask]]) -> str:
    """A stage: its graph, with the rules that its rules need, and its rules."""
    names = [rule.__name__ for rule in of_stage]
    edges = [(needed, rule.__name__) for rule in of_stage for needed in needs(rule)]
    edges = [(one, other) for one, other in edges if title == V2 or one not in ONLY_V2]
    if "Report" in names:
        used = {one for rule in found for one in needs(rule)}
        # No run of All makes these.
        ends = [rule.__name__ for rule in found if not needs_all(rule)]
        known = ("PerfectPair", "WithheldYears")
        ends = [name for name in ends if name not in (*used, "Export", *known, "PerfectModel")]
        edges += [(name, "Report") for name in ends] + [(name, "PerfectModel") for name in known]
    elsewhere = dict.fromkeys(one for one, _ in edges if one not in names)
    lines = [*(f"  {name}([{name}])" for name in elsewhere), *(f"  {one} --> {other}" for one, other in edges)]
    return "\n".join(
        [f"## {title}\n\n```mermaid", DRAWN, "flowchart TB", *lines, "```\n", *map(rule_section, of_stage)]
    )


def in_order(classes: Sequence[type[EspoTask]]) -> list[type[EspoTask]]:
    """Return classes, each after those of its inputs; else by name."""
    left, done = {cls.__name__: cls for cls in classes}, list[type[EspoTask]]()
    while left:
        ready = [name for name, cls in left.items() if not left.keys() & set(needs(cls)) and not needs_all(cls)]
        ready = ready or list(left)
        done += [left.pop(name) for name in ready]
    return done


def needs(rule: type[EspoTask]) -> list[str]:
    """Return the names of the rules that make a rule's inputs."""
    return list(dict.fromkeys(one.__name__ for _, port in ports_of(rule, InputPort) for one in port.rules))


def needs_all(rule: type[EspoTask]) -> bool:
    """Whether a rule finds out itself which tasks it needs: it shows the whole run."""
    return rule.requires is not EspoTask.requires


def rule_section(rule: type[EspoTask]) -> str:
    """A rule's heading, sentence and table."""
    parameters = [(name, one) for name, one in rule.get_params() if one.significant]
    inputs = [(name, one.__name__, port.fixed) for name, port in ports_of(rule, InputPort) for one in port.rules]
    outputs = [(name, port) for name, port in ports_of(rule, OutputPort)]
    needed = [f"`{name}` of [{maker}](#{maker.lower()}){fixed(how)}" for name, maker, how in inputs]
    if needs_all(rule):
        needed = [sentence(rule.requires.__doc__).removeprefix("Return ").removesuffix(".")]
    rows = [
        ("parameters", ", ".join(f"`{name}`{also(one)}" for name, one in parameters) or "none"),
        ("needs", "<br>".join(needed)),
        ("makes", "<br>".join(f"`{name}`: `{port.template}`{kind(port)}" for name, port in outputs)),
        ("reads", "<br>".join(map(code, rule.reads)) + more_keys(rule)),
        ("resources", resources(rule)),
        ("module", code(rule.__module__)),
    ]
    return f"### {rule.__name__}\n\n{sentence(rule.__doc__)}\n\n" + table(["", ""], [row for row in rows if row[1]])


def also(parameter: luigi.Parameter) -> str:
    """The second option of a parameter."""
    second = parameter.selected_by if isinstance(parameter, WildcardParameter) else ""
    return f" (`--{second}`)" if second else ""


def fixed(how: Mapping[str, Any]) -> str:
    """The parameters of a needed task that the rule sets itself; those that it computes have only their names."""
    given = [f"{name} = {value}" for name, value in how.items() if not callable(value)]
    computed = [name for name, value in how.items() if callable(value)]
    return "".join([f", with `{', '.join(given)}`" if given else "", f", by {', '.join(computed)}" if computed else ""])


def kind(port: OutputPort) -> str:
    """Whether an output is temporary, and what it is packed from."""
    if port.packed_from:
        return f", packed from `{port.packed_from}`"
    return ", temporary" if port.is_temporary else ""


def more_keys(rule: type[EspoTask]) -> str:
    """A remark, if the keys that a rule reads depend on its parameters."""
    if rule.reading is EspoTask.reading or (not rule.reads and not getattr(rule, "reads_step", True)):
        return ""
    return ("<br>" if rule.reads else "") + "and keys that depend on parameters or on values"


def resources(rule: type[EspoTask]) -> str:
    """A rule's resources, as people say them."""
    asked = rule.resources_default
    minutes = f"{asked.time} minutes" if str(asked.time).isdigit() else str(asked.time or "")
    dask = f"{asked.n_workers} Dask worker{'s' if asked.n_workers > 1 else ''}" if rule.uses_dask else "no Dask"
    cpus = f"{asked.cpus_per_task} CPU{'s' if asked.cpus_per_task > 1 else ''}"
    return ", ".join(filter(None, [cpus, dask, asked.memory, minutes]))


# Settings of luigi.cfg


def settings() -> str:
    """The sections of luigi.cfg."""
    own = [
        (name, one) for name, one in make.rules()[0].get_params() if not one.significant and name not in OPTION_NAMES
    ]
    return "\n".join(
        [
            "# Settings of luigi.cfg\n",
            "Commands read `luigi.cfg` in the folder where you give them. Every setting is an option, too:",
            "`--espo-engine slurm`, `--slurm-partition long`, `--Train-memory 120GB`. Luigi's own sections, such as",
            "`[core] workers`, are in Luigi's documentation.\n",
            "A run refuses an unknown key in these sections and in those of rules, and a section whose name is nearly",
            "one of theirs, before anything starts. All other sections may hold anything.\n",
            "## `[espo]`\n",
            table(["setting", "default", "meaning"], [setting(*one) for one in espo.get_params()]),
            "## `[slurm]`\n",
            "How jobs go to Slurm with `engine = slurm`: [Run on Slurm](../run/slurm.md).\n",
            scheduler(slurm),
            "## `[sge]`\n",
            "How jobs go to Grid Engine with `engine = sge`; [Run on Grid Engine](../run/grid-engine.md) explains",
            "more. The other settings of `[slurm]` hold here, too, but for bundles (`pack`, …) and sbatch's options.\n",
            scheduler(sge, without=slurm),
            "## A rule's own section\n",
            "`[Train]` is about the jobs of the rule `Train`. Its resources' defaults are the rule's",
            "([rules](rules.md)).\n",
            table(["setting", "default", "meaning"], [setting(*one, rule=True) for one in own]),
            "It also takes these options of the scheduler, which then hold for this rule alone: "
            + ", ".join(map(code, OPTION_NAMES))
            + ".\n",
        ]
    )


def scheduler(section: type[BatchSection], without: type[BatchSection] | None = None) -> str:
    """The settings of a scheduler's section, but those that are equal in another section."""
    known = {setting(*one) for one in without.get_params()} if without is not None else set()
    rows = [row for one in section.get_params() if (row := setting(*one)) not in known]
    return table(["setting", "default", "meaning"], rows)


def setting(name: str, parameter: luigi.Parameter, rule: bool = False) -> tuple[str, str, str]:
    """A row: name, default and meaning."""
    choices = [choice for choice in choices_of(parameter) if choice]
    among = f" ({', '.join(map(code, choices))})" if choices else ""
    default = "the rule's" if rule and name in RESOURCE_NAMES else code(text_of(parameter._default))
    return code(name), default, (parameter.description or "").split(" Choices: {")[0] + among


def text_of(value: object) -> str:
    """A default as luigi.cfg would have it."""
    return "" if value in (None, "", (), {}) and not isinstance(value, bool | int) else str(value)


# Keys of the configuration

_MODULES = (fields, bias_adjustment, xsdba, health_checks, regions, downscaling)
_WORDS = {
    "Period": "period", "Periods": "periods", "Longitudes": "[west, east]", "Latitudes": "[south, north]",
    "Chunks": "chunks", "Chunk": "whole number", "Integer": "whole number", "Number": "number",
    "Names": "list of names", "InputPath": "path", "OutputPath": "path", "InputPaths": "list of paths",
    "AnyMapping": "mapping", "Unit": "unit",
    "Threshold": "threshold", "PositiveThreshold": "threshold", "Frequency": "frequency", "Date": "date",
    "Shape": "path", "CoarseCells": "number or path",
}  # fmt: skip
_ALIASES = [(vars(module)[name], word) for module in _MODULES for name, word in _WORDS.items() if name in vars(module)]
# Required keys that `espo_luigi.config.dialects.fill_in` gives a value.
_FILLED_IN = {
    "name": "NAME; *required* of `domain`",
    "period": "`custom.ref_period`",
    "periods": "`custom.sim_period`",
    "to_level_prop": "by section and step",
    "to_level_meas": "by section and step",
}
_PLAIN = {str: "text", int: "whole number", float: "number", bool: "boolean", Any: "anything", Path: "path"}


def keys() -> str:
    """All keys of the YAML files."""
    parts = [
        "# Configuration keys\n",
        "All keys of the YAML files that `[espo] config` names, from the models that check them.",
        "[Configuration](configuration.md) explains the rules between keys, and the",
        "[types](configuration.md#types). NAME stands for a name of yours. *required* holds where the",
        "key's section is given. A default that is empty is that of the keys below.\n",
    ]
    seen: dict[type, str] = {}
    for name, field in RunConfig.model_fields.items():
        parts += section_of_keys(field.alias or name, field, hints(RunConfig)[name], seen)
    head = ["in", "keys of ESPO-G, ESPO v2 and xscen", "reaction"]
    return "\n".join([*parts, "## Keys without effect\n", table(head, without_effect())])


def drs() -> str:
    """The keys of a DRS, the fields of its templates, and the DRS files of the package."""
    head = ["key", "type", "default", "meaning"]
    found = tables_of(Drs, "", {})
    keys = [f"{f'### {code(place[1:])}' * bool(place)}\n\n{table(head, rows)}" for place, rows in found]
    values = [(code(f"{{{name}}}"), text) for name, text in FIELDS.items()]
    made = [(f"[`{name}`](#{name})", load_drs(name).description) for name in packaged()]
    texts = [f"### {name}\n\n```yaml\n{load_drs(name).path.read_text().strip()}\n```\n" for name in packaged()]
    return "\n".join(
        [
            "# Data reference syntaxes\n",
            "A data reference syntax (DRS) is a YAML file that says how `espo export` names, describes and cuts files",
            "([export to NetCDF](../check/netcdf.md)).\n",
            "## Keys\n",
            *keys,
            "## Fields\n",
            "A field in braces stands for a value in `folder`, `file` and `attributes`. Under `attributes: variable:`,",
            "any other name in braces stands for the variable's own attribute, such as `{long_name}`.\n",
            table(["field", "where its value comes from"], values),
            "## Those of the package\n",
            table(["name", "what it is"], made),
            *texts,
        ]
    )


def section_of_keys(section: str, field: Any, hint: Any, seen: dict[type, str]) -> list[str]:
    """A section's heading and meaning, a table of its keys, and tables of the mappings within it."""
    parts = [f"## {code(section)}\n", f"{field.description[0].upper()}{field.description[1:]}.\n"]
    for model, place in models_in(hint, section):
        for where, rows in tables_of(model, place, seen):
            heading = [] if where == section else [f"### {code(where)}\n"]
            parts += [*heading, table(["key", "type", "default", "meaning"], rows)]
    return parts


def tables_of(model: type[BaseModel], place: str, seen: dict[type, str]) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Rows of a model's keys, then of the models within it; a model is described where it first stands."""
    seen[model] = place
    rows, later = list[tuple[str, ...]](), list[tuple[type[BaseModel], str]]()
    for name, field in model.model_fields.items():
        hint, key = hints(model)[name], field.alias or name
        inner = [(one, at) for one, at in models_in(hint, f"{place}.{key}") if one.model_fields]
        links = [f"[its keys](#{re.sub(r'[^a-z0-9_-]', '', seen.get(one, at).lower())})" for one, at in inner]
        meaning = "; ".join(filter(None, [field.description or "", *dict.fromkeys(links)]))
        rows.append((code(key), type_of(hint), default_of(key, field), meaning))
        for one, at in inner:
            if one not in seen:
                seen[one] = at
                later.append((one, at))
    if rows:
        yield place, rows
    for one, at in later:
        yield from tables_of(one, at, seen)


def hints(model: type[BaseModel]) -> dict[str, Any]:
    """A model's annotations, with their metadata."""
    return get_type_hints(model, include_extras=True)


def without_effect() -> Iterator[tuple[str, str, str]]:
    """Rows of the keys without effect: the mappings that may hold them, the keys, the reaction."""
    for where, keys, (told, refused) in WITHOUT_EFFECT:
        kind = "an error: " if refused else "a warning: " if told else "nothing"
        places = ", ".join(code(place.replace("*", "NAME")) for place in where)
        yield (
            places,
            ", ".join(map(code, keys.split())),
            kind + (told if refused else told.partition(": ")[2]).rstrip("."),
        )


def models_in(hint: Any, place: str) -> list[tuple[type[BaseModel], str]]:
    """The models within an annotation, with their places; a mapping's values are at NAME."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return [(hint, place)]
    inner = get_args(hint)
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping):
        return models_in(inner[1], f"{place}.NAME")
    return [] if get_origin(hint) is Literal else [found for one in inner for found in models_in(one, place)]


def type_of(hint: Any) -> str:
    """An annotation in words."""
    if word := named(hint):
        return word
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_of(inner[0])
    if origin is Literal:
        return ", ".join(code(yaml(one)) for one in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_of(one) for one in inner if one is not type(None)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of names to {type_of(inner[1])}" if inner[1] is not Any else "mapping"
    if origin in (list, tuple):
        word = type_of(inner[0])
        return f"list of {word}" if word.startswith(("`", "[")) else f"list of {word}s"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return "mapping"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(code(one.value) for one in hint)
    return _PLAIN.get(hint, getattr(hint, "__name__", str(hint)))


def named(hint: Any) -> str:
    """The word of a checked type, if `hint` is one, perhaps with more metadata."""
    for alias, word in _ALIASES if get_origin(hint) is Annotated else ():
        if get_args(hint)[: len(get_args(alias))] == get_args(alias):
            return word
    return ""


def default_of(key: str, field: Any) -> str:
    """A key's default, as YAML would have it; nothing where it is that of the keys below."""
    value = field.default
    if field.is_required() or value is PydanticUndefined:
        return _FILLED_IN.get(key, "*required*") if field.is_required() else ""
    if value is None or value in ({}, ()):
        return "none"
    if isinstance(value, Mapping):
        return code(", ".join(f"{name}: {one}" for name, one in value.items()))
    return code(yaml(value))


def yaml(value: object) -> object:
    """A single value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else value


# Commands


# Pages that tell more than a command's help.
_MORE = {
    "cancel": "[restart](../run/restart.md#stop)",
    "catalog": "[make a catalogue](../set-up/catalogue.md)",
    "compare": "[compare two productions](../check/compare.md)",
    "clean": "[free disk](../run/ensembles.md#free-disk-space)",
    "detach": "[restart](../run/restart.md#stop)",
    "env": "[offline](../run/offline.md)",
    "explain": "[explain a value](../check/explain.md)",
    "export": "[export to NetCDF](../check/netcdf.md)",
    "logs": "[watch a run](../run/watch.md)",
    "perfect-model": "[known futures](../check/known-future.md)",
    "plan": "[the plan](../run/watch.md#the-plan)",
    "profiles": "[another cluster](../run/cluster.md)",
    "publish": "[hand products on](../check/publish.md)",
    "report": "[the report](../check/report.md)",
    "shell": "[interactive](../run/allocation.md)",
    "status": "[watch a run](../run/watch.md)",
    "submit": "[interactive](../run/allocation.md)",
    "validate": "[validate](../check/validate.md)",
    "why": "[watch a run](../run/watch.md)",
}


def commands() -> str:
    """A table of the commands, and the help of each."""
    listed = sorted(espo_command.commands.items())
    rows = [
        (f"[`espo {name}`](#espo-{name})", one.get_short_help_str(200), _MORE.get(name, "")) for name, one in listed
    ]
    parts = [
        "# The `espo` command\n",
        "`luigi --module espo_luigi.tasks All --local-scheduler` starts a run. `espo` does everything else. Give",
        "both in the folder that has your `luigi.cfg`. Each section is what `espo COMMAND --help` prints.",
        "[JSON](json.md) has the output of `--json`.\n",
        table(["command", "what it does", "more"], rows),
    ]
    with click.Context(espo_command, info_name="espo", terminal_width=WIDTH, max_content_width=WIDTH) as context:
        for name, command in listed:
            said = command.get_help(click.Context(command, info_name=name, parent=context))
            said = re.sub(r"\n  --help +Show this message and exit\.|\n\nOptions:(?=\n  --help)", "", said)
            parts.append(f"## espo {name}\n\n```text\n{said}\n```\n")
    return "\n".join(parts)


BLOCKS = {**OTHER_BLOCKS, "slurm-options": lambda: scheduler(slurm), "sge-options": lambda: scheduler(sge, slurm)}


def written_pages() -> dict[Path, str]:
    """Return the text of each page that has blocks, with the blocks as the code has them."""
    pages = ((page, page.read_text()) for page in sorted(DOCS.rglob("*.md")))
    return {page: filled(page, text, BLOCKS) for page, text in pages if "<!-- made:" in text or "<!-- end made" in text}


if __name__ == "__main__":
    for page_name, text in pages().items():
        (FOLDER / page_name).write_text(text)
    for page, text in written_pages().items():
        page.write_text(text)
