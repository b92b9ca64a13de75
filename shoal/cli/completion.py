"""Completion for shells: scripts that hold every command, system, preset and flag, so that no key waits for Python."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args, get_origin

from shoal.cli.help import COMMANDS, of_command

SHELLS = ("bash", "zsh", "fish")
OF_RUNS = (
    "resume",
    "eval",
    "plot",
    "compare",
    "export",
    "profile",
    "runs",
    "record",
    "watch",
    "report",
)  # take directories
OF_SYSTEMS = ("train", "config", "draw", "profile")


def words() -> dict[str, list[str]]:
    """Return the words that may follow, by what stands before: ``""`` a command, ``SYSTEM`` a system, ``--preset`` a
    preset, ``--env`` an environment, another flag one of its values, a command's or system's name its flags."""
    from shoal.cli.installed import installed_environments
    from shoal.run.runtimes import RUNTIMES
    from shoal.settings.flags import flag_name, ranged
    from shoal.settings.other_names import ALIASES
    from shoal.systems import SYSTEMS, load
    from shoal.zoo import names

    modules = {name: load(name) for name in SYSTEMS}
    out = {
        "": [*(name for name in COMMANDS if name != "pbt"), "--version", "--help"],
        "SYSTEM": [*SYSTEMS, "pbt", *ALIASES],
        "--preset": sorted({"auto", "none", *(preset for module in modules.values() for preset in module.PRESETS)}),
        "--runtime": [*RUNTIMES],
        "--env": sorted(env for env in installed_environments() if ":" not in env),  # at which bash breaks words
        "ZOO": names(),
    }
    for command in COMMANDS:
        out[command] = sorted({*re.findall(r"--[a-z]+(?:-[a-z]+)*", of_command(command)), "--help"})
    values: dict[str, set[str]] = {}
    for name, module in modules.items():
        hints = ranged(module.Config)
        out[name] = sorted(map(flag_name, hints))
        for field, hint in hints.items():
            values.setdefault(flag_name(field), set()).update(_choices(hint))
    out |= {alias: out[name] for alias, name in ALIASES.items()}
    return {flag: sorted(known) for flag, known in values.items() if known} | out


def _choices(hint: Any) -> set[str]:
    """Return the texts among which the value of a setting of this type is chosen."""
    if get_origin(hint) is Literal:
        return {value for value in get_args(hint) if isinstance(value, str)}
    return set().union(*map(_choices, get_args(hint)))


def script(shell: str) -> str:
    """The script for a shell."""
    known = words()
    return _fish(known) if shell == "fish" else _bash(known, shell)


def _bash(known: dict[str, list[str]], shell: str) -> str:
    cases = "\n".join(f'        {name or "commands"}) echo "{" ".join(found)}" ;;' for name, found in known.items())
    head = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"""{head}_shoal_words() {{
    case "$1" in
{cases}
    esac
}}
_shoal() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" found=""
    local command="${{COMP_WORDS[1]}}" system="${{COMP_WORDS[2]}}"
    if [ "$COMP_CWORD" -eq 1 ]; then
        found="$(_shoal_words commands)"
    elif [[ "$before" == --* ]] && [ -n "$(_shoal_words "$before")" ]; then
        found="$(_shoal_words "$before")"
    elif [ "$before" = --of ]; then
        found="$(_shoal_words SYSTEM)"
    elif [ "$COMP_CWORD" -eq 2 ] && [[ " {" ".join(OF_SYSTEMS)} " == *" $command "* ]]; then
        found="$(_shoal_words SYSTEM)"
    elif [ "$COMP_CWORD" -eq 2 ] && [ "$command" = zoo ] && [[ "$current" != -* ]]; then
        found="$(_shoal_words ZOO)"
    elif [[ "$current" == -* ]]; then
        found="$(_shoal_words "$command") $(_shoal_words "$system")"
    fi
    COMPREPLY=($(compgen -W "$found" -- "$current"))
}}
complete -o default -F _shoal shoal
"""


def _fish(known: dict[str, list[str]]) -> str:
    lines = [f"set -g _shoal_env {' '.join(known['--env'])}"]  # once, as every system has this flag
    lines += [f"complete -c shoal -n __fish_use_subcommand -f -a '{' '.join(known[''][:-2])}'"]
    for command in OF_SYSTEMS:
        lines.append(
            f"complete -c shoal -n '__fish_seen_subcommand_from {command}; and not __fish_seen_subcommand_from "
            f"{' '.join(known['SYSTEM'])}' -f -a '{' '.join(known['SYSTEM'])}'"
        )
    lines.append(f"complete -c shoal -n '__fish_seen_subcommand_from zoo' -f -a '{' '.join(known['ZOO'])}'")
    for name in (*COMMANDS, *known["SYSTEM"]):
        for flag in known.get(name, ()):
            values = "$_shoal_env" if flag == "--env" else " ".join(known.get(flag, ()))
            more = f" -x -a '{values}'" if values else ""
            lines.append(
                f"complete -c shoal -n '__fish_seen_subcommand_from {name}' -l {flag.removeprefix('--')}{more}"
            )
    return "\n".join(lines) + "\n"
