from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from support.programs.http_answers import HttpAnswer, HttpRequest, answer_json, serve_answers

ScriptedAnswer = tuple[int, Any]


@dataclass
class ScriptedSbf:
    """Returns ``answers`` by method and path, in order, and repeats the last answer. Unknown calls get status 404."""

    url: str
    answers: dict[str, list[ScriptedAnswer]] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def say(self, call: str, *said: ScriptedAnswer) -> None:
        self.answers[call] = list(said)

    def answer(self, call: str, document: object) -> ScriptedAnswer:
        self.asked.append((call, document))
        answers = self.answers.get(call, [problem(404, "not-found", f"{call} is not known")])
        return answers.pop(0) if len(answers) > 1 else answers[0]


def problem(status: int, slug: str, detail: str) -> ScriptedAnswer:
    return status, {"type": f"urn:virtcloud:problem:{slug}", "status": status, "detail": detail}


@contextmanager
def scripted_sbf() -> Iterator[ScriptedSbf]:
    fake = ScriptedSbf("")

    def answer(request: HttpRequest) -> HttpAnswer:
        fake.headers.append({name.lower(): value for name, value in request.headers.items()})
        fake.tokens.append(request.headers.get("authorization"))
        return answer_json(*fake.answer(f"{request.method} {request.path}", request.document()))

    with serve_answers(answer) as fake.url:
        yield fake
