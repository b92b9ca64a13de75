"""Completion for shells: scripts that hold every command, system, preset and flag, so that no key waits for Python."""

from __future__ import annotations

import re

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
    preset, a command's or system's name its flags."""
    import dataclasses

    from shoal.run.runtimes import RUNTIMES
    from shoal.settings.flags import flag_name
    from shoal.systems import SYSTEMS, load
    from shoal.zoo import names

    modules = {name: load(name) for name in SYSTEMS}
    out = {
        "": [*(name for name in COMMANDS if name != "pbt"), "--version", "--help"],
        "SYSTEM": [*SYSTEMS, "pbt", "ppo"],
        "--preset": sorted({"auto", "none", *(preset for module in modules.values() for preset in module.PRESETS)}),
        "--runtime": [*RUNTIMES],
        "ZOO": names(),
    }
    for command in COMMANDS:
        out[command] = sorted({*re.findall(r"--[a-z]+(?:-[a-z]+)*", of_command(command)), "--help"})
    for name, module in modules.items():
        out[name] = sorted(flag_name(field.name) for field in dataclasses.fields(module.Config))
    return out


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
    elif [ "$before" = --preset ] || [ "$before" = --runtime ]; then
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
    lines = [f"complete -c shoal -n __fish_use_subcommand -f -a '{' '.join(known[''][:-2])}'"]
    for command in OF_SYSTEMS:
        lines.append(
            f"complete -c shoal -n '__fish_seen_subcommand_from {command}; and not __fish_seen_subcommand_from "
            f"{' '.join(known['SYSTEM'])}' -f -a '{' '.join(known['SYSTEM'])}'"
        )
    lines.append(f"complete -c shoal -n '__fish_seen_subcommand_from zoo' -f -a '{' '.join(known['ZOO'])}'")
    for name in (*COMMANDS, *known["SYSTEM"]):
        for flag in known.get(name, ()):
            more = f" -x -a '{' '.join(known[flag])}'" if flag in ("--preset", "--runtime") else ""
            lines.append(
                f"complete -c shoal -n '__fish_seen_subcommand_from {name}' -l {flag.removeprefix('--')}{more}"
            )
    return "\n".join(lines) + "\n"
