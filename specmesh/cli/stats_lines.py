"""A snapshot of a daemon's statistics as plain lines, for `specmesh stats`."""

from specmesh.client import Json
from specmesh.snapshot import Fields, printable


def rows(snapshot: Json) -> list[tuple[str, str]]:
    """(name, value) pairs, the most interesting first."""
    stats = Fields(snapshot)
    loading = stats.number("loading")
    if loading is not None:
        return [("role", stats.text("role")), ("loading", f"{loading:.0%}")]
    shares = stats.by_name("busy") | stats.by_name("busy", "drafters")
    common = [
        ("role", f"{stats.text('role')}, up {stats.number('uptime_s') or 0:.0f} s"),
        ("model", f"{_told(stats, 'model', 'name')} on {_told(stats, 'model', 'backend')}"),
        ("sessions", _sessions(stats.part("sessions"))),
        ("reuse", _reuse(stats.part("reuse"))),
        ("draft_n", _told(stats, "draft_n")),
        ("round trip", "p50 {} ms, p99 {} ms".format(*_each(stats.part("round_trip_ms"), "p50", "p99"))),
        ("bytes/accepted", _told(stats, "bytes_per_accepted_token")),
        ("wire", "encrypted, for allowed keys only" if stats.raw.get("encrypted") else "not encrypted"),
        ("busy", ", ".join(f"{printable(name)} {share:.0%}" for name, share in shares.items())),
    ]
    return common + (_drafter(stats) if stats.text("role") == "drafter" else _verifier(stats))


def lines(snapshot: Json) -> list[str]:
    """The rows, aligned."""
    return [f"{name:<15}{value}" for name, value in rows(snapshot)]


def _verifier(stats: Fields) -> list[tuple[str, str]]:
    acceptance, totals = stats.part("acceptance"), stats.part("totals")
    positions = " ".join(f"{rate:.2f}" for rate in acceptance.numbers("per_position"))
    told = [
        ("acceptance", "rolling {}, total {}".format(*_each(acceptance, "rolling", "total"))),
        ("mean length", _told(acceptance, "mean_length")),
        ("per position", positions or "-"),
        ("tokens/s", "{}, one-token step {} ms".format(*_each(stats, "tokens_per_second", "one_token_step_ms"))),
        ("generated", "{} tokens in {} rounds".format(*_each(totals, "generated", "rounds"))),
        ("drafts", "{} accepted of {}".format(*_each(totals, "accepted", "drafted"))),
    ]
    peers = [("drafter", _peer_line(peer)) for peer in stats.parts("peers")]
    return told + (peers or [("drafter", "none attached")])


def _sessions(sessions: Fields) -> str:
    """How many there are; also those that wait, and those whose client is away, or whose verifier is."""
    told = "{} live of {}, {} opened".format(*_each(sessions, "live", "max", "opened"))
    more = {name: sessions.number(name) for name in ("queued", "kept", "interrupted")}
    return told + "".join(f", {number:g} {name}" for name, number in more.items() if number)


def _reuse(reuse: Fields) -> str:
    """What sessions had of those before them, and what is kept for others."""
    told = "{} sessions found {} tokens in memory, ".format(*_each(reuse, "hits", "tokens_saved"))
    return told + "{} tokens in {} sequences are kept".format(*_each(reuse, "kept_tokens", "kept_sequences"))


def _peer_line(peer: Fields) -> str:
    told = "{} ({} {}), a draft each {} ms".format(*_each(peer, "drafter", "engine", "model", "draft_interval_ms"))
    names = ("acceptance", "promised_tokens_per_second", "sessions", "standbys")
    return told + ", acceptance {}, promises {} tokens/s, drafts for {}, stands by for {}".format(*_each(peer, *names))


def _drafter(stats: Fields) -> list[tuple[str, str]]:
    several = stats.parts("verifiers")
    if len(several) > 1:
        verifiers = [("verifier", f"{_where(one, one)} at {_told(one, 'address')}{_load(one)}") for one in several]
    else:
        verifiers = [("verifier", _where(stats.part("verifier"), stats))]
    counts = _each(stats.part("totals"), "drafted", "accepted", "committed")
    return [
        *verifiers,
        ("drafting", f"{_told(stats, 'draft_ms')} ms per draft"),
        ("totals", "{} drafted, {} accepted, {} committed".format(*counts)),
    ]


def _where(verifier: Fields, stats: Fields) -> str:
    if verifier.text("name"):
        return f"{_told(verifier, 'name')} ({_told(verifier, 'model')})"
    return stats.text("refusal") or "not connected"


def _load(verifier: Fields) -> str:
    """What one of several verifiers does now."""
    if not verifier.text("name"):
        return ""
    load, own = verifier.part("load"), verifier.number("sessions", "own")
    busy = "{} of {} sessions".format(*_each(load, "sessions", "max")) if load.number("max") else "its load untold"
    return f", {busy}, {own or 0:g} ours, {_told(verifier.part('round_trip_ms'), 'p50')} ms away"


def _each(stats: Fields, *names: str) -> list[str]:
    return [_told(stats, name) for name in names]


def _told(stats: Fields, *path: str) -> str:
    """A value as it was told, a dash for none."""
    return stats.text(*path) or "-"
