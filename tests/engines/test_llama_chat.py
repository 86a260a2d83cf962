"""Chat templates: a model's own, one from a file, none, and those that do not work."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from specmesh.core.chat import ChatMessage
from specmesh.engines.llama import LlamaSettings, LlamaVerifier
from specmesh.engines.llama_chat import read_template
from specmesh.errors import ConfigError, RequestError

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

PLAIN = (
    "{% for m in messages %}{{ m.role }}={{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
SAID = (ChatMessage("system", "be"), ChatMessage("user", "hello"))
EXPECTED = "system=be<|end|>user=hello<|end|>>"

Make = Callable[..., LlamaVerifier]


@pytest.fixture
def make(make_gguf: Callable[..., Path]) -> Iterator[Make]:
    """Engines on a tiny model with this template in it, closed after the test."""
    engines: list[LlamaVerifier] = []

    def made(own: str = "", chosen: str | None = None) -> LlamaVerifier:
        path = make_gguf("chat", chat=own)
        settings = LlamaSettings(path, n_ctx=64, threads=1, gpu_layers=0, chat_template=chosen)
        engines.append(LlamaVerifier(settings))
        return engines[-1]

    yield made
    for engine in engines:
        engine.close()


def test_own_template(make: Make):
    """The text is the template's, and the end token written in it is one id."""
    engine = make(PLAIN)
    ids = engine.encode_chat(SAID)
    assert ids == engine.encode(EXPECTED)
    assert sum(token in engine.vocabulary.end_ids for token in ids) == 2


def test_chosen_template(make: Make):
    """One that was chosen goes before the model's own."""
    engine = make(PLAIN, "{{ messages[-1]['content'] }}!")
    assert engine.encode_chat(SAID) == engine.encode("hello!")


def test_no_template(make: Make):
    """A model without one cannot chat, and says what to do."""
    with pytest.raises(RequestError, match="--chat-template") as refused:
        make().encode_chat(SAID)
    assert refused.value.param == "messages"


@pytest.mark.parametrize("template", ["{{ raise_exception('roles must alternate') }}", "{{ messages[9].content }}"])
def test_template_that_refuses(make: Make, template: str):
    """A template's own complaint is the request's error."""
    with pytest.raises(RequestError, match="template refuses"):
        make(template).encode_chat(SAID)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_template_is_in_a_sandbox(make: Make, template: str):
    """A model file cannot reach out of its template."""
    with pytest.raises(RequestError):
        make(template).encode_chat(SAID)


def test_chosen_template_that_is_none(make: Make):
    """Seen before anything is served."""
    with pytest.raises(ConfigError, match="chat template") as refused:
        make("", "{% for %}")
    assert refused.value.option == "chat_template"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"x" * (2**20 + 1)])
def test_file_that_is_no_template(tmp_path: Path, content: bytes | None):
    """A file that cannot be read as text, or is far too long."""
    path = tmp_path / "template.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        read_template(path)


def test_the_model_is_freed_when_the_template_is_bad(make_gguf: Callable[..., Path]):
    """Loading again works."""
    path = make_gguf("chat", chat=PLAIN)
    settings = {"n_ctx": 64, "threads": 1, "gpu_layers": 0}
    with pytest.raises(ConfigError):
        LlamaVerifier(LlamaSettings(path, chat_template="{%", **settings))  # type: ignore[arg-type]
    with closing(LlamaVerifier(LlamaSettings(path, **settings))) as engine:  # type: ignore[arg-type]
        assert engine.encode_chat(SAID) == engine.encode(EXPECTED)
