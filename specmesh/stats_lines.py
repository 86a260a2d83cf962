"""A snapshot of a daemon's statistics as plain lines, for `specmesh stats` and, refreshed, its --watch."""

from specmesh.client import Json


def rows(snapshot: Json) -> list[tuple[str, str]]:
    """(name, value) pairs, the most interesting first."""
    if "loading" in snapshot:
        return [("role", str(snapshot["role"])), ("loading", f"{_number(snapshot['loading']):.0%}")]
    model, sessions = _dict(snapshot["model"]), _dict(snapshot["sessions"])
    trip = _dict(snapshot["round_trip_ms"])
    common = [
        ("role", f"{snapshot['role']}, up {_number(snapshot['uptime_s']):.0f} s"),
        ("model", f"{model['name']} on {model['backend']}"),
        ("sessions", f"{sessions['live']} live of {sessions['max']}, {sessions['opened']} opened"),
        ("draft_n", _or_dash(snapshot["draft_n"])),
        ("round trip", f"p50 {_or_dash(trip['p50'])} ms, p99 {_or_dash(trip['p99'])} ms"),
        ("bytes/accepted", _or_dash(snapshot["bytes_per_accepted_token"])),
        ("busy", ", ".join(f"{name} {share}" for name, share in _flat(_dict(snapshot["busy"])))),
    ]
    return common + (_verifier(snapshot) if snapshot["role"] == "verifier" else _drafter(snapshot))


def lines(snapshot: Json) -> list[str]:
    """The rows, aligned."""
    return [f"{name:<15}{value}" for name, value in rows(snapshot)]


def printable(text: str) -> str:
    """A peer's own words without what a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _verifier(snapshot: Json) -> list[tuple[str, str]]:
    acceptance, totals = _dict(snapshot["acceptance"]), _dict(snapshot["totals"])
    peers: list[Json] = snapshot["peers"]  # type: ignore[assignment]
    told = [
        ("acceptance", f"rolling {_or_dash(acceptance['rolling'])}, total {_or_dash(acceptance['total'])}"),
        ("mean length", str(acceptance["mean_length"])),
        ("per position", " ".join(f"{rate:.2f}" for rate in acceptance["per_position"]) or "-"),  # type: ignore[attr-defined]
        ("tokens/s", f"{snapshot['tokens_per_second']}, one-token step {snapshot['one_token_step_ms']} ms"),
        ("generated", f"{totals['generated']} tokens in {totals['rounds']} rounds"),
        ("drafts", f"{totals['accepted']} accepted of {totals['drafted']}"),
    ]
    told += [("drafter", _peer_line(peer)) for peer in peers]
    return told if peers else [*told, ("drafter", "none attached")]


def _peer_line(peer: Json) -> str:
    interval = _or_dash(peer["draft_interval_ms"])
    return printable(f"{peer['drafter']} ({peer['engine']} {peer['model']}), a draft each {interval} ms")


def _drafter(snapshot: Json) -> list[tuple[str, str]]:
    verifier, totals = snapshot["verifier"], _dict(snapshot["totals"])
    where = printable(f"{_dict(verifier)['name']} ({_dict(verifier)['model']})") if verifier else "not connected"
    return [
        ("verifier", where),
        ("drafting", f"{_or_dash(snapshot['draft_ms'])} ms per draft"),
        ("totals", f"{totals['drafted']} drafted, {totals['accepted']} accepted, {totals['committed']} committed"),
    ]


def _flat(shares: Json) -> list[tuple[str, str]]:
    """Busy shares, one level of nesting opened."""
    pairs: list[tuple[str, str]] = []
    for name, value in shares.items():
        pairs += _flat(value) if isinstance(value, dict) else [(name, f"{_number(value):.0%}")]
    return pairs


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
