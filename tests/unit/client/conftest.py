"""A real SBF on a Unix socket, a scripted HTTP server, and a client of this server."""

from collections.abc import Iterator

import pytest
from support.fake_machine.script import Script
from support.programs.http_answers import HttpAnswer, HttpRequest, serve_answers
from support.programs.real_sbf import running_sbf

from virtcloud.client.sbf import SbfClient


@pytest.fixture
def script() -> Iterator[Script]:
    scripted = Script()

    def answer(request: HttpRequest) -> HttpAnswer:
        scripted.asked.append((request.method, request.path, request.body))
        scripted.headers.append(dict(request.headers))
        status, kind, content = scripted.answers.pop(0)
        return HttpAnswer(status, content, {"content-type": kind})

    with serve_answers(answer) as scripted.url:
        yield scripted


@pytest.fixture
def client(script: Script) -> Iterator[SbfClient]:
    with SbfClient(script.url, timeout=30) as connected:
        yield connected


@pytest.fixture(scope="module")
def sbf() -> Iterator[str]:
    with running_sbf() as address:
        yield address
