"""`specmesh pair` on two machines, as processes."""

from pathlib import Path

from harness.ports import free_port
from processes import Mesh, Running, body, command, complete, sim_text

PROMPT = "Nobody reads along"


class Pairing(Running):
    """`specmesh pair` on the verifier's machine, which waits; `code` is what it shows."""

    def __init__(self, folder: Path, bind: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        words = ("pair", "--keys", folder, "--address", self.address)
        super().__init__(*words, env={"SPECMESH_VERIFIER_BIND": bind})
        _, _, shown = self.line(f"specmesh pair {self.address}").partition(self.address)
        self.code = shown.split()[0]


def test_pair(mesh: Mesh):
    """Two machines without keys, paired by the code alone, with nothing copied by hand: the daemons find each other. A
    wrong code is refused, and the right one is good once."""
    box, mac = mesh.folder / "box.keys", mesh.folder / "mac.keys"
    pairing = Pairing(box, mesh.address)
    wrong = f"{(int(pairing.code[:4]) + 1) % 10**4:04}{pairing.code[4:]}"
    refused = command("pair", pairing.address, wrong, "--keys", mac), pairing.end()
    assert [done.code for done in refused] == [77, 77], refused
    assert [done.err.count("specmesh pair") for done in refused] == [1, 1], refused
    pairing = Pairing(box, mesh.address)
    codes = [command("pair", pairing.address, pairing.code, "--keys", mac) for _ in range(2)]
    assert [done.code for done in codes] == [0, 69], codes
    ended = pairing.end()
    assert ended.code == 0
    assert f"--connect {mesh.address}" in codes[0].out
    verifier = mesh.verifier("", "--keys", box)
    drafter = mesh.drafter("", "--keys", mac)
    for daemon in (verifier, drafter):
        assert complete(daemon, body(PROMPT, 30)).text == sim_text(PROMPT, 30)
    [peer] = verifier.stats()["peers"]
    assert f"keys revoke {peer['key']}" in ended.out


def test_pair_waits_at_one_address(mesh: Mesh):
    """Every network is refused here too, and so is an address that is not this machine's. The folder that the daemon's
    settings name is the one that is paired."""
    folder = mesh.folder / "named.keys"
    for address, said in (("0.0.0.0", "every network"), ("192.0.2.1", "cannot listen at 192.0.2.1:7072")):  # noqa: S104
        done = command("pair", "--address", address, env={"SPECMESH_VERIFIER_KEYS": str(folder)})
        assert (done.code, said in done.err) == (78, True), done.err
    assert (folder / "secret.key").exists()
