"""The Python API against running daemons: over the socket and a URL, with threads and asyncio."""

import ast
import asyncio
import contextlib
import io
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest
from meshes import running
from processes import PATIENCE, sim_ids, sim_text, until
from served import KEY
from tls_proxy import self_signed, tls_proxy

from specmesh import AsyncClient, Client, errors

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}\n"
LONG = 4000
TEXT = sim_text("once", 40)
IDS = tuple(sim_ids("once", 40))


def url(server):
    return f"http://127.0.0.1:{server.port}/v1"


@pytest.fixture(params=["socket", "url"])
def client(server, request):
    """A client of a verifier or a drafter, by its socket or its URL."""
    address = server.daemon.socket if request.param == "socket" else url(server)
    with Client(address, PATIENCE, api_key=server.key) as made:
        yield made


# --- the document


@pytest.fixture(scope="module")
def bundled():
    pytest.importorskip("llama_cpp")
    with running() as mesh:
        template = mesh.folder / "chat.jinja"
        template.write_text(TEMPLATE)
        options = ("--chat-template", template, "--gpu-layers", 0)
        yield mesh.verifier("bundled", *options, engine="llama")


@pytest.mark.models
def test_the_examples_run_as_a_notebook(bundled, monkeypatch):
    """Each cell goes on from those before it."""
    monkeypatch.setenv("SPECMESH_SOCKET", str(bundled.socket))
    names = {"__name__": "notebook"}
    printed = []
    for cell in EXAMPLES:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(cell, str(DOCUMENT), "exec"), names)  # noqa: S102
        printed.append(bool(out.getvalue()))
    assert printed == [True] * 5


@pytest.mark.models
def test_the_examples_run_where_a_loop_runs_already(bundled, monkeypatch):
    """As in a notebook of Jupyter: `await main()` stands in place of asyncio.run."""
    monkeypatch.setenv("SPECMESH_SOCKET", str(bundled.socket))
    names = {"__name__": "notebook"}

    async def run():
        for cell in EXAMPLES:
            text = cell.replace("asyncio.run(main())", "await main()")
            code = compile(text, str(DOCUMENT), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waits = eval(code, names)  # noqa: S307
            if waits is not None:
                await waits

    with contextlib.redirect_stdout(io.StringIO()) as out:
        asyncio.run(run())
    assert out.getvalue().rstrip().endswith("]")


# --- texts


def test_a_text(client):
    answer = client.generate("once", max_tokens=40, temperature=0)
    assert (answer.text, answer.token_ids, answer.finish_reason) == (TEXT, IDS, "length")
    assert answer.prompt_token_ids == tuple(b"once")
    assert answer.report["generated_tokens"] == 40


def test_pieces_make_the_text(client):
    """On a busy machine a short text may come in one piece."""
    with client.stream("once", max_tokens=400, temperature=0) as stream:
        pieces = list(stream)
    assert len(pieces) > 1
    assert "".join(piece.text for piece in pieces) == sim_text("once", 400)
    assert stream.completion.text == sim_text("once", 400)
    assert [*chain.from_iterable(piece.token_ids for piece in pieces)] == sim_ids("once", 400)


def test_the_source_of_each_token(client):
    """The runs of a piece count its tokens."""
    with client.stream("once", max_tokens=40, temperature=0, sources=True) as stream:
        for piece in stream:
            assert sum(count for _, count in piece.sources) == len(piece.token_ids)
    assert {name for name, _ in stream.completion.sources} <= {"target", "remote"}
    assert stream.completion.sources


def test_a_prompt_of_ids(client):
    assert client.generate(tuple(b"once"), max_tokens=40, temperature=0).text == TEXT


def test_a_seed_repeats_a_text(client):
    first = client.generate("once", max_tokens=40, temperature=8)
    again = client.generate("once", max_tokens=40, temperature=8, seed=first.seed)
    assert again.text == first.text


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_logprobs_of_each_token(client, kind):
    if kind == "text":
        answer = client.generate("once", max_tokens=9, temperature=0, logprobs=2)
    else:
        answer = client.chat([{"role": "user", "content": "Hi"}], max_tokens=9, logprobs=2)
    assert tuple(token.chosen.token_id for token in answer.logprobs) == answer.token_ids
    assert {len(token.likeliest) for token in answer.logprobs} == {2}


def test_a_chat(client):
    messages = [{"role": "user", "content": "Hi"}]
    answer = client.chat(messages, max_tokens=20, temperature=0)
    assert answer.text == sim_text("user: Hi\nassistant: ", 20)


def test_calls_of_tools(client):
    tool = {"type": "function", "function": {"name": "now"}}
    messages = [{"role": "user", "content": "When?"}]
    once = {"tool_choice": "required", "parallel_tool_calls": False}
    answer = client.chat(messages, tools=[tool], max_tokens=300, **once)
    assert answer.finish_reason == "tool_calls"
    assert {call.name for call in answer.tool_calls} == {"now"}
    assert all(call.id and call.arguments == "{}" for call in answer.tool_calls)


def test_health_and_stats(client, role):
    assert client.health() == {"status": "ok", "role": role}
    assert client.stats()["role"] == role


def test_twenty_threads_share_a_client(client):
    prompts = [f"Number {number}" for number in range(20)]

    def asked(prompt):
        return client.generate(prompt, max_tokens=30, temperature=0).text

    with ThreadPoolExecutor(20) as threads:
        assert list(threads.map(asked, prompts)) == [sim_text(each, 30) for each in prompts]


# --- ends


def test_a_stream_that_is_left_ends_its_session(client, server):
    """Its text has not come to its end."""
    with client.stream("once", max_tokens=LONG, temperature=0, ignore_eos=True) as stream:
        next(stream)
        assert server.daemon.live() == 1
    server.daemon.idle()
    assert stream.completion.finish_reason == ""
    assert list(stream) == []


def test_leaving_a_client_ends_its_streams(server):
    with Client(server.daemon.socket) as client:
        stream = client.stream("once", max_tokens=LONG, temperature=0, ignore_eos=True)
        next(stream)
    server.daemon.idle()
    assert list(stream) == []
    with pytest.raises(errors.RequestError, match="closed"):
        client.stats()


def test_another_thread_ends_a_stream(client, server):
    begun = threading.Event()

    def read():
        with client.stream("once", max_tokens=LONG, temperature=0, ignore_eos=True) as stream:
            for _ in stream:
                begun.set()
        return stream.completion.finish_reason

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read)
        begun.wait(PATIENCE)
        client.close()
        assert reading.result(PATIENCE) == ""
    server.daemon.idle()


def test_another_thread_closes_a_stream(server):
    """The thread that reads it learns so at once; the daemon is not waited for."""
    notices = []
    client = Client(server.daemon.socket, on_wait=notices.append)
    stream = client.stream("once", max_tokens=LONG, temperature=0, ignore_eos=True)
    next(stream)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(stream.result)
        stream.close()
        with pytest.raises(errors.RequestError, match="this stream is closed"):
            reading.result(PATIENCE)
    server.daemon.idle()
    assert client.health()["status"] == "ok"
    assert notices == []


def test_a_daemon_that_dies_is_waited_for(mesh):
    """The text goes on where it was."""
    verifier = mesh.verifier("step_ms=20")
    notices = []
    client = Client(verifier.socket, on_wait=notices.append)
    with client.stream("once", max_tokens=200, temperature=0) as stream:
        next(stream)
        verifier.kill()
        mesh.verifier("step_ms=20", ready=False)
        assert stream.result().text == sim_text("once", 200)
    assert len(notices) == 1


# --- errors


def test_a_wrong_key(served):
    with pytest.raises(errors.Refused):
        Client(url(served["verifier"]), api_key=f"{KEY}x").stats()


def test_a_field_at_fault_is_named(client):
    with pytest.raises(errors.RequestError) as caught:
        client.generate("once", temperature=-1)
    assert caught.value.param == "temperature"


def test_no_daemon_is_there(tmp_path):
    for address in (tmp_path / "none.sock", "http://127.0.0.1:1"):
        with pytest.raises(errors.DaemonUnreachable):
            Client(address).stats()


@pytest.mark.parametrize(
    "address", ["ftp://127.0.0.1", "http://", "http://u:p@host", "http://h:x", "http://h/a b"]
)
def test_no_url(address):
    with pytest.raises(errors.ConfigError, match="no URL"):
        Client(address)


@pytest.mark.parametrize("address", ["localhost:8080", "127.0.0.1:8080/v1", "[::1]:8080"])
def test_a_url_without_its_beginning(address):
    with pytest.raises(errors.ConfigError, match=re.escape(f"give http://{address}")):
        Client(address)


# --- https


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The paths of a certificate for localhost, which no system trusts, and of its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def proxy(served, certificate):
    """The port of a proxy that encrypts, before a verifier."""
    with tls_proxy(served["verifier"].port, *certificate) as port:
        yield port


def generated(address, kind, **options):
    """Return the text by a client or an asynchronous one."""
    if kind is Client:
        with Client(address, PATIENCE, api_key=KEY, **options) as client:
            return client.generate("once", max_tokens=40, temperature=0).text

    async def main():
        async with AsyncClient(address, PATIENCE, api_key=KEY, **options) as client:
            return (await client.generate("once", max_tokens=40, temperature=0)).text

    return asyncio.run(main())


both_clients = pytest.mark.parametrize("kind", [Client, AsyncClient])


@both_clients
def test_a_certificate_of_ones_own(proxy, certificate, kind):
    assert generated(f"https://localhost:{proxy}/v1", kind, ca_file=certificate[0]) == TEXT


@both_clients
def test_a_certificate_that_is_not_trusted(proxy, kind):
    with pytest.raises(errors.DaemonUnreachable, match=r"not trusted \(self-signed.*ca_file"):
        generated(f"https://localhost:{proxy}", kind)


@both_clients
def test_a_certificate_for_another_name(proxy, certificate, kind):
    with pytest.raises(errors.DaemonUnreachable, match=r"not trusted .*mismatch.*the name"):
        generated(f"https://127.0.0.1:{proxy}", kind, ca_file=certificate[0])


@both_clients
def test_a_port_without_encryption(served, kind):
    with pytest.raises(errors.DaemonUnreachable, match=r"no encrypted connection .* give http://"):
        generated(f"https://localhost:{served['verifier'].port}", kind)


@both_clients
def test_an_encrypted_port_asked_without(proxy, kind):
    with pytest.raises(errors.WentAway, match="the connection was closed"):
        generated(f"http://localhost:{proxy}", kind, reconnect_timeout=0)


def test_certificates_that_cannot_be_read(tmp_path):
    empty = tmp_path / "empty.pem"
    empty.touch()
    for path in (empty, tmp_path / "none.pem"):
        with pytest.raises(errors.ConfigError, match="no certificates can be read"):
            Client("https://localhost", ca_file=path)


@pytest.mark.parametrize("address", [None, "/none.sock", "http://localhost"])
def test_certificates_without_encryption(address):
    with pytest.raises(errors.ConfigError, match="begins with https"):
        Client(address, ca_file="ca.pem")


@pytest.mark.parametrize("key", ["a\nb", "schlüssel", " key"])
def test_no_key(key):
    with pytest.raises(errors.ConfigError, match="API key"):
        Client(api_key=key)


# --- asyncio


def test_tasks_share_a_client(server):
    prompts = [f"Number {number}" for number in range(20)]

    async def main():
        async with AsyncClient(url(server), api_key=server.key) as client:
            asked = [client.generate(each, max_tokens=30, temperature=0) for each in prompts]
            answers = await asyncio.gather(*asked)
            assert (await client.health())["status"] == "ok"
            assert (await client.stats())["role"] == server.daemon.role
        return [answer.text for answer in answers]

    assert asyncio.run(main()) == [sim_text(each, 30) for each in prompts]


def leave(client, stream):
    """Leave the stream's context."""
    return stream.close()


def close(client, stream):
    """Leave the client's context."""
    return client.close()


@pytest.mark.parametrize("end", [leave, close])
def test_an_asynchronous_stream_that_is_left(server, end):
    async def main():
        client = AsyncClient(server.daemon.socket)
        stream = client.stream("once", max_tokens=LONG, temperature=0, ignore_eos=True)
        await anext(stream)
        await end(client, stream)
        await asyncio.to_thread(server.daemon.idle)
        return stream.completion

    assert asyncio.run(main()).finish_reason == ""


def test_another_task_closes_a_stream(server):
    async def main():
        client = AsyncClient(server.daemon.socket)
        stream = client.stream("once", max_tokens=LONG, temperature=0, ignore_eos=True)
        await anext(stream)
        reading = asyncio.create_task(stream.result())
        await asyncio.sleep(0)
        await stream.close()
        with pytest.raises(errors.RequestError, match="this stream is closed"):
            await reading
        await asyncio.to_thread(server.daemon.idle)

    asyncio.run(main())


def test_a_cancelled_task_ends_its_session(server):
    async def main():
        async with AsyncClient(server.daemon.socket) as client:
            asked = client.generate("once", max_tokens=LONG, temperature=0, ignore_eos=True)
            task = asyncio.create_task(asked)
            await asyncio.to_thread(until, lambda: server.daemon.live() == 1, "it lives")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(server.daemon.idle)

    asyncio.run(main())


def test_errors_of_the_asynchronous_client(served, tmp_path):
    async def main():
        with pytest.raises(errors.Refused):
            await AsyncClient(url(served["verifier"]), api_key="x").stats()
        with pytest.raises(errors.DaemonUnreachable):
            await AsyncClient(tmp_path / "none.sock").stats()
        with pytest.raises(errors.DaemonUnreachable):
            await AsyncClient("http://127.0.0.1:1").generate("once")

    asyncio.run(main())
