"""The daemons' shells decide nothing about drafts or tokens: each function with a branch is here, with its reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3] / "daemons"

ASKS = {
    "which message, order, effect or step came": """
        drafter/upstream_link.py UpstreamLink.receive UpstreamLink.from_core UpstreamLink.carry_out
        link/dealer.py Dealer.receive
        link/vocabulary_handshake.py VocabularyHandshake.answered
        runtime/loops.py EngineLoop._turn_until_closed DaemonLoop._late
        verifier/daemon.py VerifierLoop._take VerifierLoop._act
        verifier/drafters.py RemoteClient.on_event
    """,
    "whether something is there: keys, a peer, a timer, a model that is loaded": """
        drafter/upstream_link.py UpstreamLink.peer UpstreamLink.describe UpstreamLink.stop UpstreamLink._lost
        drafter/upstream_link.py UpstreamLink._tell_vocabulary DraftGrammars.close
        link/dealer.py Route.open Route.changed Dealer.__init__ Dealer.reconnect
        link/sockets.py bind_router Inlet.close Router.__init__ Router.guarded Router.proved_key Router.name_of
        link/vocabulary_handshake.py VocabularyHandshake.hello
        runtime/loops.py ModelThread.run EngineLoop._stepped EngineLoop._heard DaemonLoop.serve
        runtime/loops.py Mailbox.take Mailbox.end
        runtime/process.py Notifier.heartbeat Notifier._send watchdog DaemonProcess.on_stop DaemonProcess.name note
        serve.py LoopBackend.models LoopBackend.not_ready LoopBackend.stats serve_verifier _serve
        verifier/daemon.py VerifierLoop.snapshot PromptEncoder._encoded
        verifier/drafters.py DrafterPeer.describe Drafters.send
    """,
    "whether it is time, or over": """
        link/sockets.py Router._end_connection
        runtime/loops.py EngineLoop._wait DaemonLoop.stop DaemonLoop._turn
        runtime/process.py DaemonProcess.watched DaemonProcess.wait
        verifier/daemon.py VerifierLoop._settle VerifierLoop._solved
    """,
    "what a library, the system or the settings said": """
        drafter/upstream_link.py UpstreamLink._ask
        link/dealer.py Dealer._newest_handshake
        link/sockets.py zmq_errors hand_over Inlet.known Inlet.check Inlet.receive Router.sender
        runtime/loops.py ModelThread.do.settle EngineLoop._serve
        runtime/process.py Notifier.__init__
        serve.py _keys model_hash
    """,
    "what the core has decided, or whether it has changed that": """
        drafter/daemon.py DrafterLoop._tick
        drafter/upstream_link.py UpstreamLink._welcomed
        link/sockets.py Router.bad
        link/vocabulary_handshake.py VocabularyHandshake.welcomed VocabularyHandshake.look
        verifier/drafters.py Drafters._share_cores Drafters._peer_gone
    """,
}
"""Functions that only ask."""

STUCK = "in a step that hangs no HELLO or PING is sent or answered: silence shows it"

CHOOSES = {
    "drafter/daemon.py DrafterLoop.__init__": "memory is kept as the engine shares it; of several verifiers, whose ids "
    "may mean different tokens, nothing is",
    "drafter/daemon.py DrafterLoop.served": "the target's name is told where verifiers are several: of one it is clear",
    "drafter/daemon.py DrafterLoop._take": "what came; nothing new is begun once it stops",
    "drafter/daemon.py DrafterLoop._attempt": "an unusable verifier is given up; without any the daemon is of no use",
    "drafter/upstream_link.py UpstreamLink._has_room": "bytes that wait for a core in a step: only the loop sees them",
    "drafter/upstream_link.py UpstreamLink._message": f"what came; {STUCK}",
    "drafter/upstream_link.py UpstreamLink._opened": "a session with options that none can have is left: its body "
    "is the verifier's fault",
    "drafter/upstream_link.py UpstreamLink.tick": f"a refusal says more than a cut, a cut than silence; {STUCK}",
    "drafter/upstream_link.py UpstreamLink._greet": "a refusal was logged and connects anew itself: no doubt is left",
    "drafter/upstream_link.py UpstreamLink._error": "`hello` wants another HELLO; with another version nobody can talk",
    "drafter/upstream_link.py DraftGrammars.compile": "an engine of ids alone has no use for a grammar",
    "drafter/upstream_link.py DraftGrammars._compile": "one set of a vocabulary at a time: it takes much memory",
    "link/dealer.py Dealer.look": "as its handshake ended: after most refusals libzmq gives up for good",
    "link/dealer.py Dealer.send": "a CLOSE without room, which nobody repeats, cuts the connection",
    "link/dealer.py Dealer.move": "what its table of states does not have is refused",
    "link/dealer.py Dealer._undecoded": "who speaks another version, or may have lost what nobody repeats, is told",
    "link/sockets.py Router.send": "a peer without room is let go: what came after a gap would be lost on it",
    "link/sockets.py Router.take_gone": "a drafter goes with its key",
    "link/sockets.py Router.receive": "a flood must not keep the loop from its other sockets",
    "link/sockets.py Router.objection": "refused before it is decoded, which costs more; the limits are the core's",
    "link/sockets.py Router._cut_off": "who has a key would be back at once: it stays out; a log line once a while",
    "link/sockets.py Router._undecoded": "who speaks another version, or may have lost what nobody repeats, is told",
    "link/vocabulary_handshake.py VocabularyHandshake._follow": "an engine of ids alone has nothing to compare",
    "link/vocabulary_handshake.py VocabularyHandshake._translated": "the engine as it is, translated or not at all, by "
    "the core's `compare`",
    "runtime/loops.py EngineLoop.stuck": STUCK,
    "runtime/loops.py Mailbox.put": "who dozes looks soon anyway: to be woken costs a thread switch",
    "runtime/loops.py DaemonLoop._hear": "tokens that come fast are taken every DOZE: each chunk costs the engine time",
    "runtime/loops.py DaemonLoop._look": "a stopped daemon ends once it has drained, or late",
    "runtime/process.py watchdog.watch": "where no manager watches the process ends itself",
    "runtime/process.py DaemonProcess.__exit__": "no library is taken down under a step that runs",
    "runtime/process.py DaemonProcess._asked_to_stop": "the second signal ends at once; loading cannot be stopped",
    "runtime/process.py thread_share": "chosen threads stay, and those that sums depend on",
    "verifier/daemon.py VerifierLoop.__init__": "chunks are made more rarely where steps need the cores",
    "verifier/daemon.py VerifierLoop._close": "no engine is freed under a prompt that is being encoded",
    "verifier/daemon.py VerifierLoop._tick": "no pause counts without sessions; nothing is progress while strangers "
    "are not kept out",
    "verifier/daemon.py VerifierLoop._deliver": "an effect that somebody waits for wakes the loop",
    "verifier/daemon.py _may_wait": "tokens may wait for more of them, but for a text's first",
    "verifier/daemon.py VerifierLoop._carry_out": "what came; an end that comes again counts once; debug lines are "
    "made for a log that takes them",
    "verifier/daemon.py core_of": "memory is kept as the engine shares it; prompts in parts where rows are constant",
    "verifier/daemon.py PromptEncoder.add": "grammars have a thread of their own: compiling holds up no others; "
    "nobody waits any more for a prompt of a request that is gone",
    "verifier/drafters.py Drafters.look": f"what is due; {STUCK}",
    "verifier/drafters.py Drafters.receive": "nothing of a peer counts before its HELLO",
    "verifier/drafters.py Drafters._message": "what came; bytes count for who was given the session; a CLOSE with "
    f"`ref` withdraws; {STUCK}",
    "verifier/drafters.py Drafters._hello": "the same HELLO came while nobody listened, another begins anew; where the "
    f"pool is full it hears so; {STUCK}",
    "verifier/drafters.py Drafters._open_for": "a request that the core refuses is refused to who sent it",
    "verifier/drafters.py Drafters._welcome": "a host's name is for who knows it: its holder may claim cores",
}
"""Functions that choose, and why they do so here."""


def branching(node: ast.AST, within: str = "") -> Iterator[str]:
    """The functions of a module with if, case, while, except, and, or, as Class.method."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from branching(child, f"{within}.{child.name}".removeprefix("."))
            continue
        if isinstance(child, ast.If | ast.IfExp | ast.match_case | ast.While | ast.ExceptHandler | ast.BoolOp):
            yield within
        if isinstance(child, ast.comprehension) and child.ifs:
            yield within
        yield from branching(child, within)


def test_each_branch_of_a_shell_has_its_reason():
    asking = [
        (line.split()[0], name) for lines in ASKS.values() for line in lines.split("\n") for name in line.split()[1:]
    ]
    listed = [*(f"{file} {name}" for file, name in asking), *CHOOSES]
    found = {
        f"{path.relative_to(ROOT)} {name}"
        for path in ROOT.rglob("*.py")
        for name in branching(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert sorted(listed) == sorted(found)
