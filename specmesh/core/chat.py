"""What a chat is made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """Who says what. role: system, user, assistant, or what else the model's template knows; name: of who says it,
    which some templates know; empty for none."""

    role: str
    content: str
    name: str = ""

    def fields(self) -> dict[str, str]:
        """As templates and the wire have it."""
        return {"role": self.role, "content": self.content} | ({"name": self.name} if self.name else {})
