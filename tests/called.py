"""Chats, and texts with calls of tools, as a model of a family writes them."""

import json
from itertools import pairwise

from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.tool_formats import ToolCall
from specmesh.core.text.tool_writing import write_calls


def spelt(form, *calls, before=""):
    written = []
    for name, arguments in calls:
        text = json.dumps(arguments, ensure_ascii=False)
        written.append(ToolCall("", name, text))
    return before + write_calls(form, written)


def messages_of(text):
    """Return messages by letters; each line has a letter, a role and the content."""
    found = {}
    for line in text.strip().splitlines():
        letter, role, content = line.split(maxsplit=2)
        found[letter] = ChatMessage(role, content)
    return found


def cut_up(text, cuts):
    """Return the parts of a text between cuts, of which each is some place in it."""
    length = len(text)
    places = [0, length]
    for cut in cuts:
        places.append(cut % (length + 1))
    places.sort()
    return [text[begin:end] for begin, end in pairwise(places)]
