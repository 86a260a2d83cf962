"""Has one client do its work, in its own environment: `worker.py NAME FOLDER PLACES`.

Prints a line of JSON for each piece of work, with "ok" or the reason why it failed.
"""

import importlib
import json
import sys
from pathlib import Path

from work import Place


def main(name: str, folder: str, places: str) -> None:
    """Ask each of the places."""
    client = importlib.import_module(f"ask_{name}")
    for fields in json.loads(places):
        place, piece = Place(**fields), "before"
        try:
            for piece, text in client.ask(place, Path(folder)):
                result = "ok" if text else "no text"
                print(json.dumps([name, place.name, piece, result]), flush=True)
        except Exception as error:  # noqa: BLE001 - whatever a client raises is a line of the table
            why = " ".join(f"{type(error).__name__}: {error}".split())
            print(json.dumps([name, place.name, f"after {piece}", why[:600]]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
