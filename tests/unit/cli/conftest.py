"""A fake SBF in memory that answers over real HTTP, and a function that runs commands with it."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from support.cli_calls import RunCommand
from support.fake_machine.clusters import FakeSbf
from support.programs.http_answers import HttpAnswer, HttpRequest, serve_answers

from virtcloud.cli import main


@pytest.fixture
def sbf() -> Iterator[FakeSbf]:
    sbf = FakeSbf()

    def answer(request: HttpRequest) -> HttpAnswer:
        if "if-match" in request.headers:
            sbf.matched.append(request.headers["if-match"])
        status, content = sbf.answer(request.method, request.path, request.body)
        version = '"7"' if request.path == "/v1/topology" else '"abc"'
        has_version = request.method == "GET" or request.path.endswith(("/topology", "/pool"))
        return HttpAnswer(status, content, {"etag": version} if has_version else {})

    with serve_answers(answer) as sbf.url:
        yield sbf


@pytest.fixture
def run(sbf: FakeSbf) -> RunCommand:
    def call(*arguments: str, stdin: str | None = None, url: str | None = None) -> Result:
        return CliRunner(env={"COLUMNS": "100"}).invoke(main, ["--url", url or sbf.url, *arguments], input=stdin)

    return call
