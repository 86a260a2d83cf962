"""Settings of the proposer: of the environment, then of `[vllm]` in the file, then the defaults.

vLLM has no options for it. So each setting is a variable, `SPECMESH_VLLM_BIND` for `bind`, or a key
of the table `[vllm]` in the verifier's file of settings:

    [vllm]
    bind = "tcp://192.168.1.20:7071"
    http = "http://192.168.1.20:8000/v1"
"""

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specmesh import paths
from specmesh.core.fields import is_object
from specmesh.errors import ConfigError
from specmesh.security.addresses import endpoint, is_free_port, is_web_address

VARIABLES = "SPECMESH_VLLM_"
CONFIG = f"{VARIABLES}CONFIG"
_MAX_SIZE = 2**20  # bytes of a file of settings
MOST_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerSettings:
    """Settings of the proposer.

    bind: the address at which drafters attach. For a port of * the log has the one that was chosen.
    keys: the folder of keys; None for the usual ones. insecure: use no keys.
    http: the address of vLLM's own API, named to those who ask here for a text.
    socket: the local socket; None for that of a verifier daemon. no_socket: there is none.
    rows: most rows of a step that are drafted for.
    patience: seconds that a step may wait for drafts, if it has one text only.
    log_level: debug, info, warning or error.
    """

    bind: str = "tcp://127.0.0.1:7071"
    keys: Path | None = None
    insecure: bool = False
    http: str = "http://127.0.0.1:8000/v1"
    socket: Path | None = None
    no_socket: bool = False
    rows: int = 16
    patience: float = 0.02
    log_level: str = "info"

    @property
    def socket_path(self) -> Path | None:
        """Return the path of the local socket; None for none."""
        if self.no_socket:
            return None
        return self.socket or paths.default_socket("verifier")


def read_settings(environ: Mapping[str, str] | None = None) -> ProposerSettings:
    """Return the settings. environ: the environment; None for this process's.

    Raises ConfigError.
    """
    environ = os.environ if environ is None else environ
    written = _of_file(environ)
    for key in _PARSERS:
        name = _variable(key)
        variable = environ.get(name)
        if variable:  # an empty one does not count
            written[key] = variable, name
    given: dict[str, object] = {}
    for key, (value, origin) in written.items():
        try:
            given[key.replace("-", "_")] = _PARSERS[key](str(value))
        except ValueError as error:
            raise ConfigError(f"{origin}: {value!r} {error}") from None
    return ProposerSettings(**given)  # type: ignore[arg-type]  # each has its parser


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the variables that are named like settings, but are none.

    They are no fault: Kubernetes sets such variables for a service of that name.
    """
    environ = os.environ if environ is None else environ
    known = {CONFIG, *map(_variable, _PARSERS)}
    return sorted(name for name in environ if name.startswith(VARIABLES) and name not in known)


def _variable(key: str) -> str:
    return f"{VARIABLES}{key.upper().replace('-', '_')}"


def _of_file(environ: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    """Return the keys of [vllm], each with the file that it is in."""
    path = _file(environ)
    if path is None:
        return {}
    text = paths.read_text(path, _MAX_SIZE, "a file of settings")
    try:
        table: object = tomllib.loads(text).get("vllm", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not is_object(table):
        raise ConfigError(f"{path}: vllm is no table", "write [vllm] on a line of its own")
    found: dict[str, tuple[object, str]] = {}
    for key, value in table.items():
        if key not in _PARSERS:
            raise ConfigError(
                f"{path}: unknown key {key} in [vllm]", f"keys: {', '.join(_PARSERS)}"
            )
        found[key] = value, f"{path}: {key}"
    return found


def _file(environ: Mapping[str, str]) -> Path | None:
    """Return the file of settings: the one that is named, else the first usual one."""
    named = environ.get(CONFIG)
    if named:
        path = Path(paths.expanded(named))
        paths.check_there(path, CONFIG)
        return path
    for folder in paths.config_folders():
        path = folder / "verifier.toml"
        if path.is_file():
            return path
    return None


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("is neither true nor false")


def _bind(text: str) -> str:
    has_port = endpoint(text)[1] is not None or is_free_port(text)
    if not text.startswith("tcp://") or not has_port:
        raise ValueError("is not tcp://HOST:PORT")
    return text


def _url(text: str) -> str:
    if not is_web_address(text):
        raise ValueError("is not the URL of vLLM's API, http://HOST:8000/v1")
    return text


def _path(text: str) -> Path:
    if not text:
        raise ValueError("is no path")
    return Path(paths.expanded(text))


def _rows(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_ROWS:
        raise ValueError(f"is no number from 1 to {MOST_ROWS}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError("is no number of seconds") from None
    if not 0 <= seconds <= 1:
        raise ValueError("is not between 0 and 1 second")
    return seconds


def _level(text: str) -> str:
    if text not in ("debug", "info", "warning", "error"):
        raise ValueError("is none of debug, info, warning, error")
    return text


_PARSERS: dict[str, Callable[[str], object]] = {
    "bind": _bind,
    "keys": _path,
    "insecure": _flag,
    "http": _url,
    "socket": _path,
    "no-socket": _flag,
    "rows": _rows,
    "patience": _seconds,
    "log-level": _level,
}
"""The keys, and what reads the text of each: raises ValueError with the fault."""
