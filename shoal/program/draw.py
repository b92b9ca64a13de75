"""Pictures of a program before it runs: terminal text and Mermaid, with shapes and bytes (SVG: draw_svg)."""

from __future__ import annotations

from shoal.api import GROUPS, spec_nbytes
from shoal.program import Program, divided, groups
from shoal.program.wiring import Channel, Port, RoleSpec
from shoal.untrusted import one_line
from shoal.words import counted


def text(program: Program) -> str:
    """A terminal picture: one row per channel, from its writers to its readers."""
    rows = []
    for channel in program.channels.values():
        writers = [role_line(role) for role, _ in program.ends(channel, "write")]
        left = _box(writers) if writers else []
        middle = _box([f"{channel.name} ({channel.kind})", *channel_lines(program, channel)])
        right = _box([role_line(role) + _after(port) for role, port in program.ends(channel, "read")])
        rows.append((left, middle, right))
    widths = [max((len(line) for row in rows for line in row[i]), default=0) for i in range(3)]
    out = [_title(program), ""]
    for row in rows:
        height = max(len(box) for box in row)
        row = (row[0], _widen(row[1], widths[1]), row[2])
        for y in range(height):
            cells = [box[y] if y < len(box) else "" for box in row]
            cells[0], cells[1] = cells[0].rjust(widths[0]), cells[1].ljust(widths[1])
            arrows = [" ──▶ " if y == 1 and box else "     " for box in (row[0], row[2])]
            out.append(f"  {cells[0]}{arrows[0]}{cells[1]}{arrows[1]}{cells[2]}".rstrip())
        out.append("")
    out.append("  role            replicas  device    threads  when it fails")
    for role in program.roles:
        out.append(f"  {role.name:<16}{role.replicas:>8}  {role.device:<10}{role.threads:>7}  {role.on_failure}")
    return "\n".join(out) + "\n"


def mermaid(program: Program) -> str:
    """A Mermaid flowchart: roles are boxes, channels are cylinders (replay) or rounded boxes."""
    ids = {role.name: f"r{i}" for i, role in enumerate(program.roles)}
    out = [f"%% {_title(program)}", "flowchart LR"]
    for role in program.roles:
        out.append(f'  {ids[role.name]}["<b>{entities(role_line(role))}</b><br/>{role_detail(role)}"]')
    for i, channel in enumerate(program.channels.values()):
        lines = map(entities, channel_lines(program, channel))
        label = "<br/>".join([f"<b>{entities(channel.name)}</b> ({channel.kind})", *lines])
        opening, closing = ("[(", ")]") if channel.kind == "replay" else ("([", "])")
        out.append(f'  c{i}{opening}"{label}"{closing}')
        for role, port in program.ends(channel, "write"):
            out.append(f"  {ids[role.name]} {'<-->' if port.direction == 'both' else '-->'} c{i}")
        for role, port in program.ends(channel, "read"):
            if port.direction == "both":
                continue
            label = reads(port)
            out.append(f"  c{i} -->" + (f"|{label}|" if label else "") + f" {ids[role.name]}")
    return "\n".join(out) + "\n"


def entities(text: str) -> str:
    """``text`` as a label of Mermaid shows it, which reads HTML and ends at a quotation mark."""
    return text.translate(_ENTITIES)


_ENTITIES = str.maketrans({"#": "#35;", "&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;"})


def human_bytes(n: float) -> str:
    """1536 -> '1.5 kB' (powers of 1000, as disks and README tables count)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n) < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def channel_lines(program: Program, channel: Channel) -> list[str]:
    """Return what a channel holds: its fields with shapes, its capacity, its bytes."""
    return field_lines(channel) + size_lines(program, channel)


def field_lines(channel: Channel, most: int = 8) -> list[str]:
    """The arrays of one item, with shapes; of parameters only their number."""
    if channel.kind in ("params", "shared"):
        count = len(channel.spec)
        return [f"{counted(count, 'tensor')}" + (", latest version wins" if channel.kind == "params" else "")]
    fields = list(channel.spec.items())
    shown = fields if len(fields) <= most else fields[: most - 1]
    lines = [f"{one_line(name)} {shape(field.shape)} {field.dtype}" for name, field in shown]
    return lines + ([f"and {len(fields) - len(shown)} more"] if len(shown) < len(fields) else [])


def size_lines(program: Program, channel: Channel) -> list[str]:
    """Return how much a channel holds, and in how many bytes."""
    if channel.kind == "constant":
        return [f"filled once, {human_bytes(program.memory()[channel.name])} in all"]
    lines = groups.lines(program, channel) if channel.kind in GROUPS else []
    if channel.kind in ("queue", "replay"):
        writers = program.writers(channel)
        each = f" of each of {writers} writers" if writers > 1 else ""
        lines.append(f"room for {counted(channel.capacity, 'item')}{each}")
    if channel.kind == "replay":
        kept = getattr(channel.table, "capacity", None)
        tables = program.readers(channel)
        each = f" in each of {tables} tables" if tables > 1 else ""
        lines += [f"keeps {counted(kept, 'sample')}{each}"] if kept else []
        per_insert = channel.ratio.samples_per_insert
        drawn = f", then draws each {per_insert:g} time{'s' * (per_insert != 1)}" if per_insert is not None else ""
        lines.append(f"waits for {channel.ratio.min_size:,}{drawn}")
    lines += [divided.line(program, channel)] if channel.divided else []
    item, total = spec_nbytes(channel.spec), program.memory()[channel.name]
    return [*lines, f"{human_bytes(item)} an item, {human_bytes(total)} in all"]


def shape(dims: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"


def role_detail(role: RoleSpec) -> str:
    threads = f"{counted(role.threads, 'thread')}"
    return f"{role.device}, {threads}" + _FAILS.get(role.on_failure, "")


_FAILS = {"restart": ", restarts", "restore": ", restored from the newest checkpoint"}


def _title(program: Program) -> str:
    processes = sum(role.replicas for role in program.roles)
    roles, channels = len(program.roles), len(program.channels)
    return (
        f"{program.name}: {counted(roles, 'role')} in {counted(processes, 'process')}, "
        f"{counted(channels, 'channel')}, {human_bytes(sum(program.memory().values()))} of buffers"
    )


def role_line(role: RoleSpec) -> str:
    return role.name + (f" × {role.replicas}" if role.replicas > 1 else "")


def reads(port: Port) -> str:
    """Return how a port reads, where that is not simply the next item."""
    if port.lockstep:
        return "waits for each version" + (f", {port.lockstep} steps" if port.lockstep > 1 else "")
    if port.each:
        return "one of each writer"
    return f"{port.count} at a time" if port.count > 1 else ""


def _after(port: Port) -> str:
    return f", {reads(port)}" if reads(port) else ""


def _widen(box: list[str], width: int) -> list[str]:
    """A box made ``width`` characters wide."""
    return [line[:-2] + (" " if line[0] == "│" else "─") * (width - len(line)) + line[-2:] for line in box]


def _box(lines: list[str]) -> list[str]:
    width = max((len(line) for line in lines), default=0)
    return [f"┌{'─' * (width + 2)}┐", *(f"│ {line.ljust(width)} │" for line in lines), f"└{'─' * (width + 2)}┘"]
