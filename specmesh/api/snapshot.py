"""A daemon's statistics as they come out of JSON: fields by their path, each of the type that is expected of it."""

from dataclasses import dataclass

from specmesh.client import Json


@dataclass(frozen=True, slots=True)
class Fields:
    """A snapshot, or a part of it. What is missing, or of another type, is None or empty: daemons differ in version."""

    raw: Json

    def part(self, *path: str) -> "Fields":
        """The object at this path."""
        value = self._at(path)
        return Fields(value if isinstance(value, dict) else {})

    def number(self, *path: str) -> float | None:
        """The number at this path."""
        return _number(self._at(path))

    def numbers(self, *path: str) -> list[float]:
        """The list of numbers at this path."""
        value = self._at(path)
        return [_number(item) or 0.0 for item in value] if isinstance(value, list) else []

    def text(self, *path: str) -> str:
        """The text at this path. Peers say some of it: what could steer a terminal is replaced."""
        value = self._at(path)
        return printable(str(value)) if value is not None else ""

    def parts(self, *path: str) -> list["Fields"]:
        """The list of objects at this path."""
        value = self._at(path)
        return [Fields(item) for item in value if isinstance(item, dict)] if isinstance(value, list) else []

    def by_name(self, *path: str) -> dict[str, float]:
        """The object, or list, of numbers at this path, by name or index."""
        value = self._at(path)
        if isinstance(value, list):
            value = {str(index): item for index, item in enumerate(value)}
        named = value if isinstance(value, dict) else {}
        return {str(name): number for name, item in named.items() if (number := _number(item)) is not None}

    def _at(self, path: tuple[str, ...]) -> object:
        value: object = self.raw
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value


def printable(text: str) -> str:
    """A peer's own words without what a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
