"""The script of an HTTP server: its answers and the received requests."""

from dataclasses import dataclass, field


@dataclass
class Script:
    """The answers of a scripted server, in order, and the requests that the server received."""

    url: str = ""
    answers: list[tuple[int, str, bytes]] = field(default_factory=list)
    asked: list[tuple[str, str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def answer(self, status: int, body: str, kind: str = "application/json") -> None:
        """Add an answer."""
        self.answers.append((status, kind, body.encode()))

    def problem(self, status: int, slug: str, detail: str) -> None:
        """Add an error answer."""
        body = f'{{"type": "urn:virtcloud:problem:{slug}", "title": "t", "status": {status}, "detail": "{detail}"}}'
        self.answer(status, body, "application/problem+json")
