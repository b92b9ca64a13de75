"""The program of a run as it moves: its drawing, and beside it the figures of each role and channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from shoal.metering.bottleneck import bottleneck
from shoal.program.draw import human_bytes
from shoal.program.draw_svg import draw, fares
from shoal.program.picture import ChannelPicture, Live, Picture, RolePicture
from shoal.untrusted import one_line
from shoal.watch.files import RunFiles, as_dict, number
from shoal.words import counted

Part = list[list[str]]  # [name, value] of each figure
MOST_NAMED = 20  # replicas that are named one by one
MOST_PHASES = 12


def program(
    run: RunFiles, picture: Picture | None, shares: Mapping[str, Mapping[str, float]], running: bool
) -> tuple[str, dict[str, Part]]:
    """(the program as SVG, the figures of ``role/NAME`` and ``channel/NAME``), with what each does now or, of a run
    that has ended, did last; ("", {}) where none is recorded."""
    if picture is None:
        return "", {}
    last, live = run.performance.columns.last, run.live()
    fill = {c.name: last[f"fill/{c.name}"] for c in picture.channels if f"fill/{c.name}" in last}
    phases: dict[str, list[str]] = {}
    for role, each in as_dict(live.get("phases")).items() if running else ():
        if isinstance(each, list) and all(isinstance(phase, str) for phase in each):
            phases[role] = [one_line(phase)[:60] for phase in each]
    rates = as_dict(live.get("items_per_second"))
    lines = {c.name: _figures(c, run, fill.get(c.name), number(rates.get(c.name))) for c in picture.channels}
    slow = bottleneck(shares)
    busiest = {r.name: [_busiest(shares.get(r.name, {}))] for r in picture.roles}
    drawn = draw(picture, Live(fill, busiest, lines, phases, slow.role if slow is not None else ""))
    parts = {f"role/{r.name}": _role(r, shares.get(r.name, {}), phases.get(r.name, [])) for r in picture.roles}
    if slow is not None and f"role/{slow.role}" in parts:
        parts[f"role/{slow.role}"].insert(1, ["bottleneck", str(slow)])
    return drawn, parts | {f"channel/{c.name}": _channel(c, lines[c.name]) for c in picture.channels}


def _figures(c: ChannelPicture, run: RunFiles, fill: float | None, rate: float | None) -> list[str]:
    """What moves in a channel."""
    last, trained = run.performance.columns.last, run.metrics.columns.last
    out = [f"{fill:.0%} full"] if fill is not None else []
    versions = c.kind in ("params", "shared")
    if rate is not None:
        out.append(f"{rate:,.1f} items/s, {human_bytes(rate * c.nbytes)}/s")
    elif versions and "updates_per_second" in last:
        rate = run.performance.columns.rate("updates_per_second")
        out.append(f"{rate:,.1f} versions/s, {human_bytes(rate * c.nbytes)}/s")
    if versions and "policy_lag_p95" in trained:
        out.append(f"policy lag {counted(trained['policy_lag_p95'], 'update')} (95 %)")
    if c.kind == "replay" and "samples_per_insert" in trained:
        target = f", target {c.target:g}" if c.target is not None else ""
        out.append(f"{trained['samples_per_insert']:.3g} samples per insert{target}")
    return out


def _busiest(phases: Mapping[str, float]) -> str:
    return _shares(phases, 3)[:60] or "nothing reported yet"


def _shares(phases: Mapping[str, float], most: int) -> str:
    parts = sorted(phases.items(), key=lambda item: -item[1])[:most]
    return ", ".join(f"{phase} {share:.0%}" for phase, share in parts if share >= 0.005)


def _role(role: RolePicture, shares: Mapping[str, float], phases: list[str]) -> Part:
    """The figures of a role; replicas that do not work are named where there are few of them."""
    out = [["role", role.title], ["runs on", role.detail]]
    out.append(["time", _shares(shares, MOST_PHASES) or "nothing reported yet"])
    if phases:
        counted = Counter(phases).most_common(MOST_PHASES)
        out.append(["replicas now", ", ".join(f"{count} {phase}" for phase, count in counted)])
    down = [i for i, phase in enumerate(phases) if fares(phase) in ("restarting", "dead")]
    if down:
        named = ", ".join(f"{role.name}[{i}] {phases[i]}" for i in down[:MOST_NAMED])
        out.append(["not at work", named + (f" and {len(down) - MOST_NAMED} more" if len(down) > MOST_NAMED else "")])
    return [one for one in out if one[1]]


def _channel(c: ChannelPicture, lines: list[str]) -> Part:
    ends = [
        ["from", ", ".join(c.writers)],
        ["to", ", ".join(f"{role} ({how})" if how else role for role, how in c.readers)],
    ]
    told = [[c.kind, c.name], ["now", "; ".join(lines)], *ends, ["holds", "; ".join(c.sizes)]]
    return [one for one in [*told, ["an item", "; ".join(c.fields)]] if one[1]]
