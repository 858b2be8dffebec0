import json
import time
from itertools import islice

import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import DOCUMENTS, FakeSbf

from virtcloud.cli import audit
from virtcloud.client.sbf import SbfClient
from virtcloud.model.changes import AuditEntry
from virtcloud.model.errors import ServiceStopping, ServiceUnreachable, VirtcloudError

ROW = {
    "id": 7,
    "at": "2026-07-01T12:00:00Z",
    "who": "sbf@one",
    "what": "switch_change",
    "why": "revision 3 for demo",
    "element": "brno-sw",
    "cluster": None,
    "difference": {"create": "100", "add": {"p1": "100"}},
}


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOCUMENTS, "/v1/audit", [ROW])


def test_a_row_has_all_fields_and_the_difference(run: RunCommand) -> None:
    lines = run("audit").stdout.splitlines()
    assert lines[0][19:] == "  sbf@one  switch_change  element brno-sw: revision 3 for demo"
    assert lines[1:] == ["    + VLAN 100", "    + p1: VLAN 100"]


@pytest.mark.parametrize("options", [("--cluster", "demo"), ("--who", "eva")])
def test_an_answer_without_rows_is_explained(
    options: tuple[str, str], run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DOCUMENTS, "/v1/audit", [])
    result = run("audit", *options)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no row of the audit log matches\n")


def test_rows_are_json_lines(run: RunCommand) -> None:
    (line,) = run("audit", "--cluster", "demo", "--json").stdout.splitlines()
    assert json.loads(line)["difference"]["add"] == {"p1": "100"}


def test_following_continues_after_the_last_row_until_interrupted(
    run: RunCommand, sbf: FakeSbf, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def newer(_sbf: object, _element: object, _cluster: object, after: int, _request: object) -> list[object]:
        asked.append(after)
        raise KeyboardInterrupt

    monkeypatch.setattr(audit, "_follow", newer)
    assert run("audit", "--follow").exit_code == 130
    assert asked == [7]


def test_following_prints_as_many_past_rows_as_requested(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    newest_first = [AuditEntry.model_validate({**ROW, "id": row_id}) for row_id in range(1200, 0, -1)]
    pages = [newest_first[:1000], newest_first[1000:]]
    monkeypatch.setattr(SbfClient, "audit_pages", lambda *_arguments, **_options: iter(pages))
    monkeypatch.setattr(audit, "_follow", lambda *_: iter([]))
    lines = run("audit", "--limit", "1100", "--follow", "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == list(range(101, 1201))


def test_following_begins_after_the_highest_printed_id(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last printed row is the newest, but has a lower ID than another row."""
    newest_first = [AuditEntry.model_validate({**ROW, "id": row_id}) for row_id in (8, 9)]
    asked: list[object] = []
    monkeypatch.setattr(SbfClient, "audit_pages", lambda *_arguments, **_options: iter([newest_first]))
    monkeypatch.setattr(audit, "_follow", lambda *arguments: asked.append(arguments[3]) or iter([]))
    run("audit", "--limit", "1100", "--follow")
    assert asked == [9]


class GrowingAuditLog(SbfClient):
    """A fake SBF whose audit log has a new row at the second call."""

    def __init__(self) -> None:
        self.after_ids: list[int | None] = []

    def audit(  # noqa: PLR0913, PLR0917 - the parameters of SbfClient.audit
        self,
        element: str | None = None,
        cluster: str | None = None,
        after: int | None = None,
        limit: int = 100,
        wait: float = 0,
        request_id: str | None = None,
    ) -> list[AuditEntry]:
        self.after_ids.append(after)
        return [AuditEntry.model_validate({**ROW, "id": 8})] if len(self.after_ids) == 2 else []


def test_following_requests_rows_after_the_newest_printed() -> None:
    sbf = GrowingAuditLog()
    row_counts = [len(rows) for rows in islice(audit._follow(sbf, None, None, 7, None), 3)]
    assert (row_counts, sbf.after_ids) == ([0, 1, 0], [7, 7, 8])


def test_following_survives_a_restart_of_sbf(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([ServiceStopping("SBF restarts"), ServiceUnreachable("SBF is down"), []])

    def answer(*_arguments: object, **_options: object) -> object:
        found = next(answers)
        if isinstance(found, VirtcloudError):
            raise found
        return found

    monkeypatch.setattr(GrowingAuditLog, "audit", answer)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    assert next(audit._follow(GrowingAuditLog(), None, None, 7, None)) == []
