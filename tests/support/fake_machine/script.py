from dataclasses import dataclass, field


@dataclass
class Script:
    """The prepared answers in order, and the received requests (method, path, body) with their headers."""

    url: str = ""
    answers: list[tuple[int, str, bytes]] = field(default_factory=list)
    asked: list[tuple[str, str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def answer(self, status: int, body: str, kind: str = "application/json") -> None:
        self.answers.append((status, kind, body.encode()))

    def problem(self, status: int, slug: str, detail: str) -> None:
        body = f'{{"type": "urn:virtcloud:problem:{slug}", "title": "t", "status": {status}, "detail": "{detail}"}}'
        self.answer(status, body, "application/problem+json")
