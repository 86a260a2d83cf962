"""What wakes a daemon's loop."""

import select

from specmesh.daemons.runtime.loops import Mailbox


def woken(mailbox: Mailbox[str]) -> bool:
    return bool(select.select([mailbox], [], [], 0)[0])


def test_only_what_is_urgent_wakes_a_dozing_loop():
    mailbox: Mailbox[str] = Mailbox()
    mailbox.put("tokens", urgent=False)
    assert woken(mailbox)
    assert mailbox.take() == ["tokens"]
    mailbox.dozing = True
    mailbox.put("more", urgent=False)
    assert not woken(mailbox)
    mailbox.put("the end")
    assert woken(mailbox)
    assert mailbox.take() == ["more", "the end"]
    assert not woken(mailbox)
    mailbox.close()
