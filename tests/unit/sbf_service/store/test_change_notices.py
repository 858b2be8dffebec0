import json
from types import SimpleNamespace
from typing import Any, cast

from sqlalchemy import Connection

from sbf_service.store.transactions.change_notices import MAX_NOTICES, ChangeNotice, parse_notice, send_notice


def sent(topics: set[str]) -> list[str]:
    found: list[str] = []

    def execute(_statement: object, values: dict[str, Any]) -> None:
        found.append(values["notice"])

    connection = SimpleNamespace(dialect=SimpleNamespace(name="postgresql"), execute=execute)
    send_notice(cast("Connection", connection), "me", topics)
    return found


def test_a_replica_ignores_its_own_notices() -> None:
    (notice,) = sent({"element:a", "cluster:k"})
    assert parse_notice(notice, "me") is None
    assert parse_notice(notice, "other") == ChangeNotice(frozenset({"element:a", "cluster:k"}))


def test_many_topics_are_sent_in_several_notices() -> None:
    topics = {f"element:{number:060}" for number in range(1000)}
    notices = sent(topics)
    assert all(len(notice) < 8000 for notice in notices)
    assert {topic for notice in notices for topic in json.loads(notice)[1]} == topics


def test_too_many_topics_are_one_notice_for_all_waiters() -> None:
    (notice,) = sent({f"element:{number:060}" for number in range(110 * (MAX_NOTICES + 1))})
    assert parse_notice(notice, "other") == ChangeNotice(None)
