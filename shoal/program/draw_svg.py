"""The SVG picture of a program: roles in columns, channels between them, parameters flowing back below."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from shoal.program import Program
from shoal.program.draw import field_lines, human_bytes, reads, role_detail, role_line, size_lines
from shoal.program.wiring import Channel

TITLE, BODY, LINE = 15.0, 12.0, 17.0  # font sizes and line height
PAD, GAP_X, GAP_Y, MARGIN = 14.0, 56.0, 28.0, 24.0
RULE = 10.0  # height of the rule between what an item holds and how many there are
STACK = 5.0  # offset of the cards that stand for further replicas
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
EDGE = "#7d8590"  # readable on white and on black
COLOURS = {  # channel kind -> (fill, border): cards bring their own background, so that any page will do
    "role": ("#ffffff", "#30363d"), "queue": ("#ddf4ff", "#0969da"), "replay": ("#fff1d6", "#bc6c00"),
    "params": ("#e3f7e6", "#1a7f37"), "shared": ("#e3f7e6", "#1a7f37"), "constant": ("#f3e8ff", "#8250df"),
    "board": ("#eff2f5", "#57606a"), "reduce": ("#ffebe9", "#cf222e"),
}  # fmt: skip


@dataclass
class Card:
    """A rectangle with a title, lines, and after a rule the lines of ``foot``; ``x`` and ``y`` are its top left."""

    title: str
    lines: list[str]
    kind: str
    foot: list[str] = field(default_factory=list)
    copies: int = 1
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        heading = self.title if self.kind == "role" else f"{self.title}  {self.kind}"
        texts = [(heading, TITLE * 0.58), *((line, BODY * 0.53) for line in self.lines + self.foot)]
        return max(len(text) * size for text, size in texts) + 2 * PAD

    @property
    def height(self) -> float:
        return TITLE + (len(self.lines) + len(self.foot)) * LINE + (RULE if self.foot else 0) + 2 * PAD - 2

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


def svg(program: Program) -> str:
    """A picture of the program, self-contained."""
    roles = {r.name: Card(role_line(r), [role_detail(r)], "role", copies=min(r.replicas, 3)) for r in program.roles}
    channels = {c.name: Card(c.name, field_lines(c), c.kind, size_lines(program, c)) for c in program.channels.values()}
    ranks = _ranks(program)
    forward = {c.name: _forward(program, c, ranks) for c in program.channels.values()}
    width, bottom = _place(program, roles, channels, ranks, forward)
    width, bottom = _place_feedback(program, roles, channels, forward, width, bottom)
    parts = []
    lanes: dict[str, int] = {}
    for channel in program.channels.values():
        parts += _edges(program, channel, roles, channels[channel.name], forward[channel.name], lanes)
    cards = [_card(card) for card in (*channels.values(), *roles.values())]
    total = human_bytes(sum(program.memory().values()))
    processes = sum(role.replicas for role in program.roles)
    caption = f"{program.name}: {processes} processes, {total} of buffers"
    height = bottom + MARGIN + LINE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" font-family="{FONT}">'
        f"<title>{escape(caption)}</title>"
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{EDGE}"/></marker></defs>'
    )
    foot = f'<text x="{MARGIN}" y="{height - MARGIN / 2:.0f}" font-size="{BODY}" fill="{EDGE}">{escape(caption)}</text>'
    return "\n".join([head, *parts, *cards, foot, "</svg>"]) + "\n"


# ---------------------------------------------------------------------------------------- layout
def _ranks(program: Program) -> dict[str, int]:
    """Column of each role: after every role that feeds it, not counting parameters and cycles."""
    feeds: dict[str, set[str]] = {role.name: set() for role in program.roles}
    for channel in program.channels.values():
        if channel.kind not in ("params", "shared"):
            for reader, _ in program.ends(channel, "read"):
                feeds[reader.name] |= {w.name for w, _ in program.ends(channel, "write")} - {reader.name}
    ranks: dict[str, int] = {}

    def rank(name: str, above: tuple[str, ...]) -> int:
        if name not in ranks:
            before = [rank(f, (*above, name)) for f in sorted(feeds[name]) if f not in (*above, name)]
            ranks[name] = 1 + max(before, default=-1)
        return ranks[name]

    for role in program.roles:
        rank(role.name, ())
    return ranks


def _forward(program: Program, channel: Channel, ranks: dict[str, int]) -> bool:
    """Return whether a channel leads to the right, and so stands between two columns."""
    writers = [ranks[r.name] for r, _ in program.ends(channel, "write")]
    readers = [ranks[r.name] for r, _ in program.ends(channel, "read")]
    return bool(writers and readers) and max(writers) < min(readers)


def _place(
    program: Program, roles: dict[str, Card], channels: dict[str, Card], ranks: dict[str, int], forward: dict[str, bool]
) -> tuple[float, float]:
    """Columns from left to right: roles, the channels they write, the next roles ...; each centred vertically."""
    columns: list[list[Card]] = [[] for _ in range(2 * max(ranks.values(), default=0) + 1)]
    for name, card in roles.items():
        columns[2 * ranks[name]].append(card)
    for channel in program.channels.values():
        if forward[channel.name]:
            last = max(ranks[r.name] for r, _ in program.ends(channel, "write"))
            columns[2 * last + 1].append(channels[channel.name])
    heights = [sum(c.height for c in column) + GAP_Y * (len(column) - 1) for column in columns]
    labels = [reads(port) for channel in program.channels.values() for _, port in program.ends(channel, "read")]
    gap = max(GAP_X, max(map(len, labels), default=0) * BODY * 0.5 + 24)
    tallest, x = max(heights), MARGIN
    for column, height in zip(columns, heights, strict=True):
        width, y = max((c.width for c in column), default=0.0), MARGIN + (tallest - height) / 2
        for card in column:
            card.x, card.y = x + (width - card.width) / 2, y
            y += card.height + GAP_Y
        x += width + gap if column else 0.0
    return x - gap + MARGIN + STACK, MARGIN + tallest


def _place_feedback(
    program: Program,
    roles: dict[str, Card],
    channels: dict[str, Card],
    forward: dict[str, bool],
    width: float,
    bottom: float,
) -> tuple[float, float]:
    """Parameters and whatever leads back go below, one under another, between the roles they join."""
    for channel in program.channels.values():
        if forward[channel.name]:
            continue
        ends = program.ends(channel, "write") + program.ends(channel, "read")
        centres = [roles[role.name].centre[0] for role, _ in ends]
        card = channels[channel.name]
        card.x = max(MARGIN, (min(centres) + max(centres) - card.width) / 2)
        card.y = bottom + GAP_Y + 10
        bottom = card.y + card.height
        width = max(width, card.x + card.width + MARGIN)
    return width, bottom


# --------------------------------------------------------------------------------------- drawing
def _edges(
    program: Program, channel: Channel, roles: dict[str, Card], card: Card, forward: bool, lanes: dict[str, int]
) -> list[str]:
    out = []
    for role, _ in program.ends(channel, "write"):
        start = roles[role.name]
        if forward:
            x = start.x + start.width + STACK * (start.copies - 1)
            out.append(_curve(x, start.centre[1], card.x, card.centre[1]))
        else:
            out.append(_around(start, card, lanes, role.name, leaves=True))
    for role, port in program.ends(channel, "read"):
        end = roles[role.name]
        if forward:
            x, y = card.x + card.width, card.centre[1]
            out.append(_curve(x, y, end.x, end.centre[1]))
            if label := reads(port):
                middle = ((x + end.x) / 2, (y + end.centre[1]) / 2 - 7)
                out.append(_text(label, *middle, BODY - 1.5, EDGE, anchor="middle"))
        else:
            out.append(_around(end, card, lanes, role.name, leaves=False))
    return out


def _curve(x0: float, y0: float, x1: float, y1: float) -> str:
    bend = (x1 - x0) / 2
    return _path(f"M{x0:.1f} {y0:.1f} C{x0 + bend:.1f} {y0:.1f} {x1 - bend:.1f} {y1:.1f} {x1 - 2:.1f} {y1:.1f}")


def _around(role: Card, card: Card, lanes: dict[str, int], name: str, leaves: bool) -> str:
    """Down from a role's lower edge, then sideways into the card, or the other way round."""
    lane = lanes.get(name, 0)
    lanes[name] = lane + 1
    x = role.centre[0] + (0, 24, -24, 48, -48, 72, -72)[lane % 7]
    top = role.y + role.height + (STACK * (role.copies - 1))
    y, radius = card.centre[1], 12.0
    if card.x - radius < x < card.x + card.width + radius:
        points = f"M{x:.1f} {top:.1f} V{card.y - 2:.1f}" if leaves else f"M{x:.1f} {card.y:.1f} V{top + 2:.1f}"
        return _path(points)
    side, sign = (card.x + card.width, 1.0) if x > card.x else (card.x, -1.0)
    if leaves:
        return _path(
            f"M{x:.1f} {top:.1f} V{y - radius:.1f} Q{x:.1f} {y:.1f} {x - sign * radius:.1f} {y:.1f} "
            f"H{side + sign * 2:.1f}"
        )
    return _path(
        f"M{side:.1f} {y:.1f} H{x - sign * radius:.1f} Q{x:.1f} {y:.1f} {x:.1f} {y - radius:.1f} V{top + 2:.1f}"
    )


def _path(d: str) -> str:
    return f'<path d="{d}" fill="none" stroke="{EDGE}" stroke-width="1.8" marker-end="url(#tip)"/>'


def _card(card: Card) -> str:
    fill, border = COLOURS[card.kind]
    radius = 8 if card.kind == "role" else 16
    out = []
    for copy in range(card.copies - 1, -1, -1):
        x, y = card.x + copy * STACK, card.y + copy * STACK
        out.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{card.width:.1f}" height="{card.height:.1f}" rx="{radius}" '
            f'fill="{fill}" stroke="{border}" stroke-width="1.5"/>'
        )
    x, y = card.x + PAD, card.y + PAD + TITLE - 4
    out.append(_text(card.title, x, y, TITLE, "#1f2328", weight="600"))
    if card.kind != "role":
        out.append(_text(card.kind, card.x + card.width - PAD, y, BODY, border, anchor="end"))
    for i, line in enumerate(card.lines, start=1):
        out.append(_text(line, x, y + 4 + i * LINE - 2, BODY, "#424a53"))
    if card.foot:
        y += 2 + len(card.lines) * LINE + RULE
        out.append(f'<path d="M{x:.1f} {y:.1f} H{card.x + card.width - PAD:.1f}" stroke="{border}" opacity="0.35"/>')
        out += [_text(line, x, y + i * LINE, BODY, "#424a53") for i, line in enumerate(card.foot, start=1)]
    return "\n".join(out)


def _text(text: str, x: float, y: float, size: float, colour: str, weight: str = "400", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )
