"""The SVG picture of a program: roles in columns, channels between them, parameters flowing back below."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.program.picture import ChannelPicture, Live, Picture
from shoal.program.program import Program
from shoal.untrusted import markup

TITLE, BODY, LINE = 15.0, 12.0, 17.0  # font sizes and line height
PAD, GAP_X, GAP_Y, MARGIN = 14.0, 56.0, 28.0, 24.0
RULE = 10.0  # height of the rule between what an item holds and how many there are
STACK = 5.0  # offset of the cards that stand for further replicas
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
EDGE = "#7d8590"  # readable on white and on black
LIVE_CHARACTERS = 38  # room for a line of figures
DOT, DOTS_PER_ROW, MOST_DOTS = 16.0, 16, 128  # size of a replica's dot with its gap, and how many are drawn
BAR = 8.0  # height of the bar that shows how full a channel is
SLOW = "#d55e00"  # as SYMBOLS, of the palette of Okabe and Ito, which the colour-blind can tell apart
SYMBOLS = {  # how a replica fares -> (colour, shape within 10 x 10): told apart without colour, too
    "work": ("#009e73", '<circle cx="5" cy="5" r="4.6" fill="{0}"/>'),
    "wait": ("#0072b2", '<circle cx="5" cy="5" r="3.8" fill="none" stroke="{0}" stroke-width="1.8"/>'),
    "starting": ("#8a8a8a", '<path d="M5 0.5 L9.5 5 L5 9.5 L0.5 5 z" fill="{0}"/>'),
    "restarting": (SLOW, '<path d="M5 0.5 L9.8 9.2 L0.2 9.2 z" fill="{0}"/>'),
    "dead": ("#000000", '<path d="M1 1 L9 9 M9 1 L1 9" stroke="{0}" stroke-width="2.4"/>'),
}
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
    name: str = ""  # of a card that is live: pages find it by this
    fill: float | None = None  # share of its slots in use
    phases: list[str] = field(default_factory=list)  # of its replicas
    slow: bool = False  # it limits the speed
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        heading = self.title if self.kind == "role" else f"{self.title}  {self.kind}"
        texts = [(heading, TITLE * 0.58), *((line, BODY * 0.53) for line in self.lines + self.foot)]
        if self.name:  # so that cards stay where they are when a figure gets longer
            texts.append(("x" * LIVE_CHARACTERS, BODY * 0.53))
        return max(len(text) * size for text, size in texts) + 2 * PAD

    @property
    def height(self) -> float:
        rows = -(-len(self.phases) // DOTS_PER_ROW) if self.phases else 0
        bar = BAR + 6 if self.fill is not None else 0
        text = (len(self.lines) + len(self.foot)) * LINE + (RULE if self.foot else 0)
        return TITLE + text + rows * DOT + bar + 2 * PAD - 2

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


def svg(program: Program) -> str:
    """A picture of the program, self-contained."""
    return draw(Picture.of(program))


def draw(picture: Picture, live: Live | None = None) -> str:
    """The picture as SVG; with ``live``, each role and channel shows what it does at this moment."""
    roles = {r.name: Card(r.title, [r.detail], "role", copies=min(r.replicas, 3)) for r in picture.roles}
    channels = {c.name: Card(c.name, list(c.fields), c.kind, list(c.sizes)) for c in picture.channels}
    if live is not None:
        enliven(roles, channels, picture, live)
    ranks = _ranks(picture)
    forward = {c.name: _forward(c, ranks) for c in picture.channels}
    width, bottom = _place(picture, roles, channels, ranks, forward)
    width, bottom = _place_feedback(picture, roles, channels, forward, width, bottom)
    parts = []
    lanes: dict[str, int] = {}
    for channel in picture.channels:
        parts += _edges(channel, roles, channels[channel.name], forward[channel.name], lanes)
    cards = [_card(card) for card in (*channels.values(), *roles.values())]
    height = bottom + MARGIN + LINE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" font-family="{FONT}">'
        f"<title>{markup(picture.caption)}</title>"
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{EDGE}"/></marker></defs>'
    )
    foot = (
        f'<text x="{MARGIN}" y="{height - MARGIN / 2:.0f}" font-size="{BODY}" fill="{EDGE}">'
        f"{markup(picture.caption)}</text>"
    )
    return "\n".join([head, *parts, *cards, foot, "</svg>"]) + "\n"


def enliven(roles: dict[str, Card], channels: dict[str, Card], picture: Picture, live: Live) -> None:
    """Add to the cards what ``live`` says of them."""
    for role in picture.roles:
        card = roles[role.name]
        card.name, card.slow = role.name, role.name == live.bottleneck
        card.lines += live.role_lines.get(role.name, [])
        card.phases = live.phases.get(role.name, [])[:MOST_DOTS]
        if role.replicas > MOST_DOTS:
            card.lines.append(f"the first {MOST_DOTS} of {role.replicas}:")
    for channel in picture.channels:
        card = channels[channel.name]
        card.name = channel.name
        card.foot += live.channel_lines.get(channel.name, [])
        card.fill = live.fill.get(channel.name)


def fares(phase: str) -> str:
    """Return the key of ``SYMBOLS`` for the phase of a replica."""
    if phase.startswith("wait"):
        return "wait"
    return {"start": "starting", "restarting": "restarting", "dead": "dead"}.get(phase, "work")


# ---------------------------------------------------------------------------------------- layout
def _ranks(picture: Picture) -> dict[str, int]:
    """Column of each role: after every role that feeds it, not counting parameters and cycles."""
    feeds: dict[str, set[str]] = {role.name: set() for role in picture.roles}
    for channel in picture.channels:
        if channel.kind not in ("params", "shared"):
            for reader, _ in channel.readers:
                feeds[reader] |= {*channel.writers} - {reader}
    ranks: dict[str, int] = {}

    def rank(name: str, above: tuple[str, ...]) -> int:
        if name not in ranks:
            before = [rank(f, (*above, name)) for f in sorted(feeds[name]) if f not in (*above, name)]
            ranks[name] = 1 + max(before, default=-1)
        return ranks[name]

    for role in picture.roles:
        rank(role.name, ())
    return ranks


def _forward(channel: ChannelPicture, ranks: dict[str, int]) -> bool:
    """Return whether a channel leads to the right, and so stands between two columns."""
    writers = [ranks[role] for role in channel.writers]
    readers = [ranks[role] for role, _ in channel.readers]
    return bool(writers and readers) and max(writers) < min(readers)


def _place(
    picture: Picture, roles: dict[str, Card], channels: dict[str, Card], ranks: dict[str, int], forward: dict[str, bool]
) -> tuple[float, float]:
    """Columns from left to right: roles, the channels they write, the next roles ...; each centred vertically."""
    columns: list[list[Card]] = [[] for _ in range(2 * max(ranks.values(), default=0) + 1)]
    for name, card in roles.items():
        columns[2 * ranks[name]].append(card)
    for channel in picture.channels:
        if forward[channel.name]:
            last = max(ranks[role] for role in channel.writers)
            columns[2 * last + 1].append(channels[channel.name])
    heights = [sum(c.height for c in column) + GAP_Y * (len(column) - 1) for column in columns]
    labels = [how for channel in picture.channels for _, how in channel.readers]
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
    picture: Picture,
    roles: dict[str, Card],
    channels: dict[str, Card],
    forward: dict[str, bool],
    width: float,
    bottom: float,
) -> tuple[float, float]:
    """Parameters and whatever leads back go below, one under another, between the roles they join."""
    for channel in picture.channels:
        if forward[channel.name]:
            continue
        centres = [roles[role].centre[0] for role in (*channel.writers, *(name for name, _ in channel.readers))]
        card = channels[channel.name]
        card.x = max(MARGIN, (min(centres) + max(centres) - card.width) / 2)
        card.y = bottom + GAP_Y + 10
        bottom = card.y + card.height
        width = max(width, card.x + card.width + MARGIN)
    return width, bottom


# --------------------------------------------------------------------------------------- drawing
def _edges(
    channel: ChannelPicture, roles: dict[str, Card], card: Card, forward: bool, lanes: dict[str, int]
) -> list[str]:
    out = []
    for role in channel.writers:
        start = roles[role]
        if forward:
            x = start.x + start.width + STACK * (start.copies - 1)
            out.append(_curve(x, start.centre[1], card.x, card.centre[1]))
        else:
            out.append(_around(start, card, lanes, role, leaves=True))
    for role, label in channel.readers:
        end = roles[role]
        if forward:
            x, y = card.x + card.width, card.centre[1]
            out.append(_curve(x, y, end.x, end.centre[1]))
            if label:
                middle = ((x + end.x) / 2, (y + end.centre[1]) / 2 - 7)
                out.append(_text(label, *middle, BODY - 1.5, EDGE, anchor="middle"))
        else:
            out.append(_around(end, card, lanes, role, leaves=False))
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
    border, stroke = (SLOW, 4.0) if card.slow else (border, 1.5)
    radius = 8 if card.kind == "role" else 16
    out = []
    if card.name:
        kind = "role" if card.kind == "role" else "channel"
        out.append(f'<g data-{kind}="{markup(card.name)}" tabindex="0" role="button">')
    for copy in range(card.copies - 1, -1, -1):
        x, y = card.x + copy * STACK, card.y + copy * STACK
        out.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{card.width:.1f}" height="{card.height:.1f}" rx="{radius}" '
            f'fill="{fill}" stroke="{border}" stroke-width="{stroke}"/>'
        )
    x, y = card.x + PAD, card.y + PAD + TITLE - 4
    out.append(_text(card.title, x, y, TITLE, "#1f2328", weight="600"))
    if card.kind != "role":
        out.append(_text(card.kind, card.x + card.width - PAD, y, BODY, border, anchor="end"))
    elif card.slow:
        out.append(_text("bottleneck", card.x + card.width - PAD, y, BODY, SLOW, weight="600", anchor="end"))
    for i, line in enumerate(card.lines, start=1):
        out.append(_text(line, x, y + 4 + i * LINE - 2, BODY, "#424a53"))
    y += 2 + len(card.lines) * LINE
    if card.foot:
        y += RULE
        out.append(f'<path d="M{x:.1f} {y:.1f} H{card.x + card.width - PAD:.1f}" stroke="{border}" opacity="0.35"/>')
        out += [_text(line, x, y + i * LINE, BODY, "#424a53") for i, line in enumerate(card.foot, start=1)]
        y += len(card.foot) * LINE
    out += _dots(card, x, y + 6)
    if card.fill is not None:
        out += _bar(card, x, y + 6)
    return "\n".join([*out, *(["</g>"] if card.name else [])])


def _dots(card: Card, x: float, y: float) -> list[str]:
    """A symbol for each replica, which tells its phase where a pointer rests on it."""
    out = []
    for i, phase in enumerate(card.phases):
        colour, shape = SYMBOLS[fares(phase)]
        at = f"translate({x + i % DOTS_PER_ROW * DOT:.1f} {y + i // DOTS_PER_ROW * DOT:.1f})"
        told = f"<title>{markup(f'{card.name}[{i}]: {phase}')}</title>"
        out.append(f'<g transform="{at}" data-phase="{fares(phase)}">{told}{shape.format(colour)}</g>')
    return out


def _bar(card: Card, x: float, y: float) -> list[str]:
    share = min(1.0, max(0.0, card.fill or 0.0))
    width, border = card.width - 2 * PAD, COLOURS[card.kind][1]
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR}" rx="4" fill="#ffffff" stroke="{border}"/>',
        f'<rect class="fill" x="{x:.1f}" y="{y:.1f}" width="{width * share:.1f}" height="{BAR}" rx="4" '
        f'fill="{border}"/>',
    ]


def _text(text: str, x: float, y: float, size: float, colour: str, weight: str = "400", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="{anchor}">{markup(text)}</text>'
    )
