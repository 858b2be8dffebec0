"""Tests of the text of log lines."""

import logging

from virtcloud.model.message_text import OneLineFormatter, format_event, list_known


def test_a_value_with_blanks_is_quoted() -> None:
    assert format_event("port_tagged", {"vlan": 100, "answer": "a b", "why": ""}) == (
        "port_tagged vlan=100 answer='a b' why=''"
    )


def test_control_characters_of_any_logger_are_escaped() -> None:
    record = logging.LogRecord("paramiko", logging.ERROR, "", 0, "said %s", ("\x1b[2J\rgone",), None)
    assert OneLineFormatter("%(message)s").format(record) == "said \\x1b[2J\\rgone"


def test_of_many_known_names_the_nearest_are_listed() -> None:
    names = [f"h{number:03}" for number in range(300)]
    assert list_known("h150x", reversed(names)) == f"{', '.join(names[141:161])} and 280 more"
    assert list_known("a", names).startswith("h000, h001")
    assert list_known("z", names).endswith("h299 and 280 more")
    assert (list_known("a", []), list_known("a", ["c", "b"])) == ("none", "b, c")
