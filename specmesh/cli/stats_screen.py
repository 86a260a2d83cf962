"""A snapshot as a screen of a given size, for `specmesh stats --watch`, and as one line where there is no screen."""

from collections.abc import Sequence

from rich.text import Text

from specmesh.client import Json
from specmesh.snapshot import Fields

LABEL, VALUE = 12, 7
BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█░", " .:-=+*#@."
"""Marks from nothing to most, and of the empty part of a bar; the second for terminals that have ASCII only."""

COLUMNS = (
    ("session", "session", 10),
    ("prompt_tokens", "prompt", 8),
    ("generated", "generated", 11),
    ("acceptance_rate", "acceptance", 12),
    ("draft_n", "draft_n", 9),
    ("lead", "lead", 6),
    ("tokens_per_second", "tokens/s", 10),
)


def screen(snapshot: Json, width: int, height: int, trouble: str = "", marks: str = BLOCKS) -> Text:
    """At most `height` lines of at most `width` columns; `trouble` stands below the headline."""
    stats = Fields(snapshot)
    lines = [_headline(stats, width), *([Text(trouble, "bold red")] if trouble else [])]
    if stats.number("loading") is not None:
        lines.append(_bar("loading", stats.number("loading"), width, marks))
    elif stats.text("role") == "drafter":
        lines += _drafter(stats, width, marks)
    else:
        lines += _verifier(stats, width, height, marks)
        lines += _sessions(stats, height - len(lines))
    lines = lines[:height]
    for line in lines:
        line.truncate(width, overflow="crop")
    return Text("\n", no_wrap=True).join(lines)


def one_line(snapshot: Json) -> str:
    """The same in a line."""
    stats, role = Fields(snapshot), Fields(snapshot).text("role")
    loading = stats.number("loading")
    if loading is not None:
        return f"{role} loading {loading:.0%}"
    kind, unit = _pace(stats)
    told = [
        f"{role} {stats.text('model', 'name')}",
        f"sessions {_shown(stats.number('sessions', 'live'))}",
        f"{unit} {_newest(stats, kind)}",
        f"{_share_of(stats)} {_percent(_accepted(stats))}",
        f"draft_n {_shown(stats.number('draft_n'))}",
        *([f"speed-up {_speedup(stats)}"] if role == "verifier" else []),
        f"round trip {_shown(stats.number('round_trip_ms', 'p50'))} ms",
        *(f"{side} {_percent(share)} busy" for side, share in _busy(stats)),
    ]
    return ", ".join(told)


# --- lines


def _headline(stats: Fields, width: int) -> Text:
    uptime = int(stats.number("uptime_s") or 0)
    right = f"  up {uptime // 3600}:{uptime // 60 % 60:02}:{uptime % 60:02}"
    model, backend = stats.text("model", "name"), stats.text("model", "backend")
    line = Text.assemble((stats.text("role"), "bold cyan"), f"  {model}", f" on {backend}" if backend else "")
    line.truncate(max(width - len(right), 0), overflow="crop", pad=True)
    return line.append(right, "dim")


def _verifier(stats: Fields, width: int, height: int, marks: str) -> list[Text]:
    totals, length = stats.part("totals"), _shown(stats.number("acceptance", "mean_length"))
    drafts = f"{_shown(totals.number('accepted'))} accepted of {_shown(totals.number('drafted'))}, mean length {length}"
    step = f"over the one-token step of {_shown(stats.number('one_token_step_ms'))} ms"
    peers = [_peer(peer, width, marks) for peer in stats.parts("peers")]
    return [
        *_curves(stats, width, marks),
        _row("draft_n", _shown(stats.number("draft_n")), drafts),
        _row("speed-up", _speedup(stats), step),
        _trip(stats),
        _bar("verifier", stats.number("busy", "verifier"), width, marks, "busy"),
        *_fitting(peers or [_row("drafter", "-", "none attached")], height // 4),
    ]


def _drafter(stats: Fields, width: int, marks: str) -> list[Text]:
    totals, sessions = stats.part("totals"), stats.part("sessions")
    seconds = f"{_shown(stats.number('draft_ms'))} ms per draft"
    counts = ", ".join(f"{_shown(totals.number(name))} {name}" for name in ("drafted", "accepted", "committed"))
    told = stats.parts("verifiers")
    if len(told) < 2:
        told = [Fields({**stats.part("verifier").raw, "busy": stats.number("busy", "verifier")})]
    verifiers = [_of_several(one, width, marks) for one in told]
    held = f"live of {_shown(sessions.number('max'))}, {_shown(sessions.number('opened'))} opened"
    return [
        *_curves(stats, width, marks),
        _row("draft_n", _shown(stats.number("draft_n")), f"{seconds}; {counts}"),
        _trip(stats),
        _bar("drafter", stats.number("busy", "drafter"), width, marks, "busy"),
        *verifiers,
        _row("sessions", _shown(sessions.number("live")), held),
    ]


def _of_several(verifier: Fields, width: int, marks: str) -> Text:
    """One of a drafter's verifiers."""
    if not verifier.text("name"):
        return _row("verifier", "-", " at ".join(filter(None, ["not connected", verifier.text("address")])))
    name = f"{verifier.text('name')} ({verifier.text('model')})"
    return _bar("verifier", verifier.number("busy"), width, marks, name)


def _curves(stats: Fields, width: int, marks: str) -> list[Text]:
    """Share of drafts accepted, and pace, over the last minute."""
    drafted, accepted = stats.numbers("last_minute", "drafted"), stats.numbers("last_minute", "accepted")
    rates = [a / d if d else 0.0 for a, d in zip(accepted, drafted, strict=False)]
    kind, unit = _pace(stats)
    pace, room = stats.numbers("last_minute", kind), width - LABEL - VALUE - 1
    return [
        _row(_share_of(stats), _percent(_accepted(stats)), (_spark(rates, 1.0, room, marks), "green")),
        _row(unit, _newest(stats, kind), (_spark(pace, max(pace, default=0.0), room, marks), "green")),
    ]


def _trip(stats: Fields) -> Text:
    trip = stats.part("round_trip_ms")
    wire = f"{_shown(stats.number('bytes_per_accepted_token'))} bytes per accepted token"
    return _row("round trip", _shown(trip.number("p50")), f"ms, p99 {_shown(trip.number('p99'))} ms; {wire}")


def _peer(peer: Fields, width: int, marks: str) -> Text:
    interval = _shown(peer.number("draft_interval_ms"))
    name = f"{peer.text('drafter')}, {interval} ms per draft ({peer.text('engine')} {peer.text('model')})"
    return _bar("drafter", peer.number("busy"), width, marks, name)


def _bar(label: str, share: float | None, width: int, marks: str, name: str = "") -> Text:
    """A share as a bar, a fifth of the screen long."""
    length, share = width // 5, min(max(share or 0.0, 0.0), 1.0)
    full = round(share * length)
    return _row(label, _percent(share), (marks[-2] * full, "green"), (marks[-1] * (length - full), "dim"), f" {name}")


def _sessions(stats: Fields, room: int) -> list[Text]:
    """The sessions that live, the newest first, below their headings."""
    rows = stats.parts("sessions", "rows")
    if not rows:
        return [Text(), _row("sessions", "0", f"live, {_shown(stats.number('sessions', 'opened'))} opened")]
    head = Text("".join(f"{title:>{size}}" for _, title, size in COLUMNS), "cyan")
    cells = ("".join(f"{_shown(row.number(key)):>{size}}" for key, _, size in COLUMNS) for row in reversed(rows))
    return [Text(), head, *_fitting([*map(Text, cells)], room - 2)]


def _row(label: str, value: str, *rest: str | tuple[str, str]) -> Text:
    return Text.assemble((f"{label:<{LABEL}}", "cyan"), (f"{value:>{VALUE}} ", "bold"), *rest)


def _fitting(lines: list[Text], room: int) -> list[Text]:
    """The lines, or as many as there is room for and how many more there are."""
    if len(lines) <= room:
        return lines
    shown = max(room - 1, 0)
    return [*lines[:shown], Text(f"... {len(lines) - shown} more", "dim")]


# --- values


def _pace(stats: Fields) -> tuple[str, str]:
    """What is counted per second, and what it is called."""
    return ("drafted", "drafts/s") if stats.text("role") == "drafter" else ("generated", "tokens/s")


def _newest(stats: Fields, kind: str) -> str:
    """Of the last whole second."""
    return _shown(next(reversed(stats.numbers("last_minute", kind)), None))


def _share_of(stats: Fields) -> str:
    """What the share of accepted drafts is called: a drafter counts those too that nobody came to verify."""
    return "stood" if stats.text("role") == "drafter" else "acceptance"


def _accepted(stats: Fields) -> float | None:
    """Accepted per draft over the last minute; None where there was none."""
    drafted = sum(stats.numbers("last_minute", "drafted"))
    return sum(stats.numbers("last_minute", "accepted")) / drafted if drafted else None


def _speedup(stats: Fields) -> str:
    """Tokens per second of a session against one per one-token step; the mean of those that live."""
    rates = [row.number("tokens_per_second") or 0.0 for row in stats.parts("sessions", "rows")]
    step = stats.number("one_token_step_ms")
    return f"{sum(rates) / len(rates) * step / 1e3:.2f}x" if rates and step else "-"


def _busy(stats: Fields) -> list[tuple[str, float]]:
    """Each side and its share; of several drafters the busiest."""
    shares, drafters = stats.by_name("busy"), stats.by_name("busy", "drafters")
    return [*shares.items(), *([("drafter", max(drafters.values()))] if drafters else [])]


def _spark(values: Sequence[float], top: float, width: int, marks: str) -> str:
    """The newest values that fit, a mark each; nothing for 0."""
    most = len(marks) - 2
    newest = values[-width:] if width > 0 else ()
    return "".join(marks[min(max(round(value / top * most), 1), most)] if value > 0 else marks[0] for value in newest)


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return str(int(value)) if value.is_integer() else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
