"""Makes click options from pydantic models (`config/option.py`): a command's options are declared once.

A command that is decorated with `model_options` receives one validated object for each model. Only what the
command line says is passed to the model, so defaults are the model's, and `model_fields_set` tells what a
person chose.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import click
from click.core import ParameterSource
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hermes.cli.options import RenamedOption, add_options
from hermes.config.option import bare_type, bounds_of, flag_of, is_repeatable
from hermes.errors import UsageError

Model = TypeVar("Model", bound=BaseModel)
ReadFile = Callable[[Path], Mapping[str, Any]]
"""The values of a --config file, by the names of the model's fields."""


def model_options(
    *models: type[BaseModel], read_file: ReadFile | None = None, file_help: str = "with these flags"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the options of the models. `read_file`: for the values of the first model in --config FILE, a
    YAML file as `file_help` says."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(*arguments: Any, **params: Any) -> Any:
            path: Path | None = params.pop("config_file", None)
            file_values: Mapping[str, Any] = read_file(path) if read_file and path else {}
            objects = []
            for model in models:
                objects.append(parse_model(model, click.get_current_context(), file_values, path))
                file_values = {}
                for name in model.model_fields:
                    params.pop(name, None)
            return command(*arguments, *objects, **params)

        fields = [(name, info) for model in models for name, info in model.model_fields.items()]
        fields.sort(
            key=lambda field: flag_of(*field).names[0].startswith("--env.")
        )  # of few commands: listed last
        parameters = [_parameter(name, info) for name, info in fields]
        return add_options(*parameters, *([_config_option(file_help)] if read_file else []))(run)

    return decorate


def read_flags(model: type[BaseModel], path: Path, command: str) -> dict[str, Any]:
    """The values of a YAML file whose keys are the flags of a command."""
    from hermes.config import yaml_file
    from hermes.disk.files import read_text

    return fields_of_keys(model, yaml_file.parse(read_text(path) or "", str(path)).data, path, command)


def fields_of_keys(
    model: type[BaseModel],
    keys: Mapping[str, Any],
    path: Path,
    command: str,
    names: Mapping[str, str] = MappingProxyType({}),
    excluded: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The values by field. UsageError for a key that is no flag of the command.

    `names`: other keys, and the fields they set. `excluded`: fields that only a command line sets.
    """
    values = {}
    for key, value in keys.items():
        name = names.get(key, key.replace("-", "_"))
        if name in excluded or name not in model.model_fields:
            raise UsageError(f"{path}: unknown key '{key}'", f"the keys are the flags of 'hermes {command}'")
        values[name] = value
    return values


def _config_option(file_help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help=f"YAML file {file_help}; what the command line says wins over it.",
    )


def parse_model(
    model: type[Model],
    ctx: click.Context,
    file_values: Mapping[str, Any] = MappingProxyType({}),
    path: Path | None = None,
) -> Model:
    """The model of what a command line says, over the values of the file at `path`."""
    typed = {
        name: ctx.params[name]
        for name in model.model_fields
        if ctx.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)
    }
    try:
        return model.model_validate({**file_values, **typed})
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0]) if problem["loc"] else ""
        if name in file_values and name not in typed:
            raise UsageError(
                f"{path}: {name}: {problem['msg']}", f"see 'hermes {ctx.info_name} --help'"
            ) from error
        parameter = next((param for param in ctx.command.params if param.name == name), None)
        raise click.BadParameter(problem["msg"], ctx, parameter) from error


def _parameter(name: str, info: FieldInfo) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    flag, annotation = flag_of(name, info), bare_type(info)
    if flag.argument:
        many = is_repeatable(annotation)
        return click.argument(
            name,
            nargs=-1 if many else 1,
            required=info.is_required(),
            metavar=flag.metavar,
            type=_click_type(_element(annotation) if many else annotation, info),
        )
    default = info.get_default(call_default_factory=True)
    if isinstance(default, Enum):
        default = default.value
    elif isinstance(default, list) and not bounds_of(info).get("max_length"):
        default = ",".join(map(str, default))
    settings: dict[str, Any] = {"help": info.description, "metavar": flag.metavar, "hidden": flag.hidden}
    if flag.former:
        settings["cls"] = RenamedOption
    if annotation is bool:
        settings["is_flag"] = True
    else:
        settings["multiple"] = is_repeatable(annotation)
        element = _element(annotation) if settings["multiple"] else annotation
        settings["type"] = _click_type(element, info)
        settings["required"] = info.is_required()
        if default not in (None, "", (), PydanticUndefined):
            settings |= {"default": default, "show_default": True}
    return click.option(*flag.names, *flag.former, name, **settings)


def _element(annotation: Any) -> Any:
    return typing.get_args(annotation)[0]


def _click_type(annotation: Any, info: FieldInfo) -> Any:
    bounds, origin = bounds_of(info), typing.get_origin(annotation)
    if origin is Literal:
        return click.Choice(list(typing.get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return click.Choice([member.value for member in annotation])
    if annotation is Path:
        kind = flag_of("", info).path
        return click.Path(
            path_type=Path,
            exists=kind in ("file", "existing"),
            dir_okay=kind != "file",
            file_okay=kind != "folder",
        )
    if origin is tuple:
        return tuple(typing.get_args(annotation))
    if origin is list:
        return (_element(annotation),) * bounds["max_length"] if "max_length" in bounds else _Words()
    if annotation in (int, float):
        number = click.IntRange if annotation is int else click.FloatRange
        if not bounds:
            return annotation
        low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
        return number(low, high, min_open="gt" in bounds, max_open="lt" in bounds)
    return str


class _Words(click.ParamType[str]):
    """Several words with commas between them; the model splits and checks them."""

    name = "A,B"
