"""What a chat is made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """Who says what. role: system, user, assistant, or what else the model's template knows."""

    role: str
    content: str
