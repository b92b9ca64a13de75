"""A run's configuration in layers (defaults < preset < file < flags), each value remembering its origin."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.settings import yaml_text
from shoal.settings.entries import over
from shoal.settings.fields import RUN_OPTIONS, check_fields
from shoal.settings.flags import expect, flag_name, ranged, short_name, unknown
from shoal.settings.kinds import INTERFACES, SERVED_BY, env_kind, preset_kinds
from shoal.settings.schedule import Linear, linear
from shoal.types import Values
from shoal.untrusted import RUN_FORMAT, brief, excerpt, parse_json, read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


OF_RUN = "config.json"  # the file in a run's directory that holds its configuration


@dataclass(frozen=True)
class Resolved:
    """A complete configuration. ``origins``: field -> ``default``, ``preset atari``, ``file x.toml``, ``flag``
    or ``argument`` (of ``shoal.train``); ``preset`` is the one used (``none`` if none), ``why`` says how it
    was chosen; ``fitted`` which values the run's length, or the environment or its pace, changed, "" for none."""

    cfg: Any
    origins: dict[str, str]
    preset: str
    why: str
    fitted: str = ""

    def values(self) -> Values:
        """Field name -> value, in declared order."""
        return {f.name: getattr(self.cfg, f.name) for f in dataclasses.fields(self.cfg)}

    def shown(self) -> Values:
        """``values`` without those that are for another kind of environment."""
        only, kind = only_for(type(self.cfg)), env_kind(str(getattr(self.cfg, "env", "")))
        return {name: value for name, value in self.values().items() if only.get(name, kind) == kind}


# ---------------------------------------------------------------------------------------- layers
def resolve(
    system: Any,
    preset: str | None = None,
    file: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    source: str = "flag",
    name: str = "",
    plays: Callable[[Values], str] | None = None,
) -> Resolved:
    """Layer a system's defaults, a preset, a file and ``overrides`` (typed values; ``source`` names them). A value
    takes the place of that below it; of a dict, ``Entries`` take the place of single ones. preset: None: that of the
    file, or ``auto``. plays: the id of the environment in these values, where that may be a function that makes it
    (``envs.plays``); None: ``env`` as it is."""
    Config, presets = system.Config, system.PRESETS
    name = name or str(getattr(system, "__name__", "system")).rpartition(".")[2]
    in_file = read_file(file) if file is not None else {}
    for_system = in_file.pop("system", None)
    if for_system is not None and short_name(str(for_system)) != short_name(name):
        raise UsageError(f"{file} is for the system '{excerpt(for_system)}', not '{name}'")
    name = short_name(name)
    of_file = str(in_file.pop("preset")) if "preset" in in_file else None
    asked = next((given for given in (preset, of_file) if given is not None), "auto")

    layers: list[tuple[str, Mapping[str, Any]]] = [(f"file {file}", in_file), (source, overrides or {})]
    defaults = default_values(Config)
    env = next((layer["env"] for _, layer in reversed(layers) if "env" in layer), defaults.get("env", ""))
    look = getattr(Config, "interface", None)
    if asked != "auto" or (file is not None and is_run(file)):  # it has all values
        plays = look = None
    played = str(env) if plays is None else plays(_layered(Config, layers, name)[0])
    given = {key.replace("-", "_"): value for _, layer in layers for key, value in layer.items()}
    preset, why = _choose_preset(name, presets, asked, str(env), played, None if look is None else lambda: look(given))
    if file is not None and of_file not in (None, preset) and is_run(file):
        raise UsageError(f"{file} has a value for every setting, those of its preset '{of_file}': give no other preset")
    if preset != "none":
        layers.insert(0, (f"preset {preset}", presets[preset]))
    values, origins = _layered(Config, layers, name)
    refuse_foreign(Config, values, origins)
    told, free = [], [field for field, origin in origins.items() if not by_user(origin)]
    for fit in ("left_off", *(() if look is None else ("fit",))):
        found, sentence = getattr(Config, fit, _as_it_is)(values, free)
        values |= found
        origins |= {field: f"{origins[field]}, fitted" for field in found}
        told += [sentence] if sentence else []
    return Resolved(build(Config, values), origins, preset, why, "; ".join(told))


def _as_it_is(values: Values, free: Sequence[str]) -> tuple[Values, str]:
    """Stands for ``fit`` and ``left_off`` of a config class that has none."""
    return {}, ""


def _layered(Config: Any, layers: Sequence[tuple[str, Mapping[str, Any]]], name: str) -> tuple[Values, dict[str, str]]:
    """The defaults of a config with ``layers`` over them, each with its origin: (values, origins), by field."""
    values = default_values(Config)
    origins, hints = dict.fromkeys(values, "default"), ranged(Config)
    for origin, layer in layers:
        spelled: dict[str, str] = {}
        for key, value in layer.items():
            field = key.replace("-", "_")
            if (other := spelled.setdefault(field, key)) != key:
                raise _with_place(UsageError(f"'{other}' and '{key}' are one setting, given twice"), origin)
            if field not in values and field in RUN_OPTIONS:
                hint = f"not a setting of {name}: give it as a flag of shoal train, or as an argument of shoal.train"
                raise _with_place(UsageError(f"'{key}' is an option of the run, {hint}"), origin)
            if field not in values:
                where = "key" if origin.startswith("file") else "setting"
                if isinstance(value, Mapping) and origin.startswith("file"):
                    told = f"'{excerpt(key)}' is a section, and settings are keys at the top, without sections"
                    raise _with_place(UsageError(told), origin)
                names = [*values, *RUN_OPTIONS] if origin == "argument" else list(values)
                raise _with_place(unknown(where, key, names, name), origin)
            values[field] = expect(hints[field], over(values[field], value), subject(field, origin))
            origins[field] = origin
        if "envs" in layer and values.get("total_envs") and not layer.get("total_envs", layer.get("total-envs")):
            values["total_envs"], origins["total_envs"] = 0, origin  # so many for each actor
    if values.get("total_envs"):
        origins["envs"] = origins["total_envs"]
    return values, origins


def build(Config: Any, values: Mapping[str, Any]) -> Any:
    """An instance of a config class; a refusal of its own becomes a UsageError."""
    try:
        return Config(**values)
    except ValueError as error:
        raise UsageError(str(error)) from None


def coerce_all(Config: Any, values: Mapping[str, Any], where: str) -> Values:
    """Values read from a file, as the types of ``Config``; a name it does not have is an error."""
    hints, fields = ranged(Config), default_values(Config)
    for key, value in _of_today(values, fields).items():
        if key not in fields:
            why = unknown("key", key, list(fields), where)
            raise UsageError(f"{why} (the file is of another version of Shoal, or damaged)")
        fields[key] = expect(hints[key], value, f"'{key}' ({where})")
    return fields


def _of_today(values: Mapping[str, Any], fields: Mapping[str, Any]) -> Values:
    """Settings as a version wrote them that had ``anneal`` and ``anneal_clip`` in place of schedules."""
    out = dict(values)
    if "anneal" not in out or "anneal" in fields:
        return out
    for flag, name, end in (("anneal", "learning_rate", 0.0), ("anneal_clip", "clip", 0.0)):
        if out.pop(flag, False):
            out[name] = linear(out[name], end)
    if isinstance(fields.get("importance_exponent"), Linear):  # it rose to 1 without being told
        out["importance_exponent"] = linear(out["importance_exponent"], 1.0)
    return out


def default_values(Config: Any) -> Values:
    """The dataclass's defaults, by field. UsageError for a field that a configuration cannot have."""
    check_fields(Config)
    out = {}
    for f in dataclasses.fields(Config):
        if f.default_factory is not dataclasses.MISSING:
            out[f.name] = f.default_factory()
        elif f.default is not dataclasses.MISSING:
            out[f.name] = f.default
        else:
            raise UsageError(f"field '{f.name}' of {Config.__name__} needs a default")
    return out


def only_for(Config: Any) -> dict[str, str]:
    """Field -> the kind of environment that it is for: those of a base class that says ``only_for``."""
    bases = [cls for cls in Config.__mro__ if "only_for" in vars(cls)]
    return {f.name: cls.only_for for cls in bases for f in dataclasses.fields(cls)}


def refuse_foreign(Config: Any, values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """UsageError for a value given by the user that the environment would ignore; a preset may hold such. origins: as
    of ``Resolved``; what is not in it is a default."""
    kind, defaults = env_kind(str(values.get("env", ""))), default_values(Config)
    for field, wanted in only_for(Config).items():
        if by_user(origins.get(field, "default")) and kind != wanted and values[field] != defaults[field]:
            raise UsageError(
                f"{subject(field, origins[field])} is an option of {wanted} environments, and {values['env']} is none"
            )


def _choose_preset(
    name: str, presets: Mapping[str, Any], preset: str, env: str, played: str, interface: Callable[[], str] | None
) -> tuple[str, str]:
    """The preset, and why it is that one. played: the id of what ``env`` makes. interface: what the environment shows
    and takes (``INTERFACES``), looked at only where no preset stands under the kind of its id; None: nobody can
    look."""
    if preset == "auto":
        for kind in preset_kinds(played):
            if kind in presets:
                what = env if played == env else f"{env} makes {played}, which"
                told = INTERFACES.get(kind, f"is of the kind '{kind}'")
                return kind, f"{what} {told}; --preset none turns it off"
        if interface is not None and any(kind in presets for kind in INTERFACES):
            shown = interface()
            for kind in (shown, SERVED_BY.get(shown, shown)):
                if kind in presets:
                    return kind, f"{env} {INTERFACES[shown]}; --preset none turns it off"
        return "none", f"{name} has no preset for {env}"
    if preset == "none" or preset in presets:
        return preset, "asked for"
    names = [*presets, "auto", "none"]
    raise UsageError(f"{unknown('preset', preset, names, name)} (there are {', '.join(names)})")


def by_user(origin: str) -> bool:
    """Return whether a setting of this origin is the user's own, neither a default nor of a preset."""
    return not origin.startswith(("default", "preset"))


def subject(field: str, origin: str) -> str:
    """Return how a sentence calls a setting that the user gave."""
    if origin == "flag":
        return flag_name(field)
    return f"'{field}'" if origin == "argument" else f"'{field}' ({origin})"


def _with_place(error: UsageError, origin: str) -> UsageError:
    return UsageError(f"{origin}: {error}") if origin not in ("flag", "argument") else error


def read_file(path: str | Path) -> Values:
    """The keys of a TOML or YAML file, or what the run in a directory had (its config.json)."""
    if dataclasses.is_dataclass(path) and not isinstance(path, type):
        raise UsageError(
            f"'config' expects the path of a TOML or YAML file, found a {type(path).__qualname__}: shoal.train takes "
            "one in place of the system, as in shoal.train(config, steps=1000)"
        )
    if not isinstance(path, (str, Path)):
        raise UsageError(
            f"'config' expects the path of a TOML or YAML file, found {path!r}: single settings are arguments of their "
            "own, such as steps=1000"
        )
    path = Path(path)
    if path.is_dir():
        path /= OF_RUN
        if path.is_symlink():
            raise UsageError(f"'{path}' is a symbolic link: give the file that it leads to, should it be yours")
    if not path.is_file():
        raise UsageError(f"no such config file: '{path}'")
    try:
        text = read_text(path, links=path.name != OF_RUN)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text in UTF-8 (byte {error.start})") from None
    except ValueError as error:
        raise UsageError(f"{path} is no config file: {error}") from None
    if path.suffix == ".toml":
        try:
            return dict(tomllib.loads(text))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is not valid TOML: {error}") from None
    if path.suffix in (".yaml", ".yml"):
        import yaml

        try:
            data = yaml_text.read(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
        if data is None:
            return {}
        if not isinstance(data, dict):
            raise UsageError(f"{path}: expected keys and values, found {type(data).__name__}")
        return {str(k): v for k, v in data.items()}
    if path.name == OF_RUN:
        return _of_run(path, text)
    raise UsageError(f"a config file ends in .toml, .yaml or .yml, or is the directory of a run; found '{path.name}'")


def is_run(file: str | Path) -> bool:
    """Return whether ``read_file`` reads what a run had."""
    return Path(file).is_dir() or Path(file).name == OF_RUN


def _of_run(path: Path, text: str) -> Values:
    try:
        facts = parse_json(text)
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(facts, dict) or not isinstance(facts.get("config"), dict):
        raise UsageError(f"{path} is no config.json of a run: it has no 'config'")
    written = facts.get("format", 1)
    if written != RUN_FORMAT:
        raise UsageError(
            f"{path} was written by another version of Shoal: format {brief(written)}, and this one reads {RUN_FORMAT}"
        )
    return {**facts["config"], **{key: facts[key] for key in ("system", "preset") if key in facts}}


def show(value: Any) -> str:
    """A value as a flag would be given it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)
