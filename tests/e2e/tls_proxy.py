"""A proxy that encrypts, with a certificate that no system trusts."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from processes import PATIENCE


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for localhost and its key; return both paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name.from_rfc4514_string("CN=localhost")
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1))
    builder = builder.not_valid_after(now + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    made = builder.add_extension(names, critical=False).sign(key, SHA256())
    certificate_path = folder / "certificate.pem"
    certificate_path.write_bytes(made.public_bytes(Encoding.PEM))
    key_path = folder / "key.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    key_path.write_bytes(secret)
    return certificate_path, key_path


@contextmanager
def tls_proxy(port: int, certificate: Path, key: Path) -> Iterator[int]:
    """Relay encrypted connections to a port of this machine; yield the proxy's own port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listening: Future[int] = Future()
    stopping = threading.Event()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, requests), _copy(answers, writer))

    async def serve() -> None:
        server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
        listening.set_result(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(stopping.wait)
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield listening.result(PATIENCE)
    finally:
        stopping.set()
        thread.join()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
