"""Another OpenAI-compatible server, such as llama-server, asked as a daemon is."""

import http.client
import json
from collections.abc import Generator
from urllib.parse import urlsplit

from specmesh.client import Json, chunks
from specmesh.errors import Busy, ConfigError, DaemonUnreachable, SpecmeshError


class Server:
    """The server at `url`: http://HOST:PORT, what comes before /v1 in its paths included. Raises ConfigError where it
    is no address."""

    def __init__(self, url: str) -> None:
        wrong = ConfigError(f"--url {url!r} is no server's address: write http://HOST:PORT", "url")
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            raise wrong from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise wrong
        self.url = url
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._base = parts.path.rstrip("/").removesuffix("/v1")

    def model(self) -> str:
        """The first model it serves. Raises DaemonUnreachable."""
        connection, response = self._request("GET", "/v1/models", None)
        try:
            told = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DaemonUnreachable(f"{self.url} does not tell its models ({error})") from None
        finally:
            connection.close()
        match told:
            case {"data": [{"id": str(name)}, *_]}:
                return name
        raise DaemonUnreachable(f"{self.url} is no OpenAI-compatible server: /v1/models names none")

    def complete(self, body: Json) -> Generator[Json, None, None]:
        """POST a streamed completion and yield its chunks. Raises Busy where it has no place, else SpecmeshError."""
        asked = body | {"stream": True, "stream_options": {"include_usage": True}}
        connection, response = self._request("POST", "/v1/completions", asked)
        try:
            if response.status in (429, 503):
                raise Busy(f"{self.url} has no place")
            if response.status != 200:
                raise SpecmeshError(f"{self.url} answers {response.status}: {response.read()[:200]!r}")
            yield from chunks(response)
        except (OSError, http.client.HTTPException) as error:
            raise DaemonUnreachable(f"{self.url} went away while answering ({error})") from None
        finally:
            response.close()
            connection.close()

    def _request(
        self, method: str, path: str, body: Json | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._kind(self._host, self._port)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, self._base + path, None if body is None else json.dumps(body), headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise DaemonUnreachable(f"no server answers at {self.url} ({error}): is it running?") from None
