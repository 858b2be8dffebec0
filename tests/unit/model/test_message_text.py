"""Tests of the text of log lines."""

import logging

from virtcloud.model.message_text import OneLineFormatter, format_event


def test_a_value_with_blanks_is_quoted() -> None:
    assert format_event("port_tagged", {"vlan": 100, "answer": "a b", "why": ""}) == (
        "port_tagged vlan=100 answer='a b' why=''"
    )


def test_control_characters_of_any_logger_are_escaped() -> None:
    record = logging.LogRecord("paramiko", logging.ERROR, "", 0, "said %s", ("\x1b[2J\rgone",), None)
    assert OneLineFormatter("%(message)s").format(record) == "said \\x1b[2J\\rgone"
