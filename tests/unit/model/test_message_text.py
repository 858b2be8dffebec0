import logging

from virtcloud.model.message_text import OneLineFormatter, format_event, list_known


def test_a_value_with_blanks_is_quoted() -> None:
    assert format_event("port_tagged", {"vlan": 100, "answer": "a b", "why": ""}) == (
        "port_tagged vlan=100 answer='a b' why=''"
    )


def test_control_characters_of_any_logger_are_escaped() -> None:
    record = logging.LogRecord("paramiko", logging.ERROR, "", 0, "said %s", ("\x1b[2J\rgone",), None)
    assert OneLineFormatter("%(message)s").format(record) == "said \\x1b[2J\\rgone"


def test_a_message_of_a_library_cannot_forge_lines() -> None:
    forged = "oops\n2026-11-20 10:00:00,000 INFO sbf_service forged"
    record = logging.LogRecord("uvicorn", logging.ERROR, "", 0, "said %s\n", (forged,), None)
    record.exc_text = f"Traceback …\nValueError: {forged}"
    lines = OneLineFormatter("%(message)s").format(record).split("\n")
    assert lines[0].startswith("said oops\\n2026-11-20")
    assert all(line.startswith("  ") for line in lines[1:])


def test_the_nearest_of_many_known_names_are_listed() -> None:
    names = [f"h{number:03}" for number in range(300)]
    assert list_known("h150x", reversed(names)) == f"{', '.join(names[141:161])} and 280 more"
    assert list_known("a", names).startswith("h000, h001")
    assert list_known("z", names).endswith("h299 and 280 more")
    assert (list_known("a", []), list_known("a", ["c", "b"])) == ("none", "b, c")
