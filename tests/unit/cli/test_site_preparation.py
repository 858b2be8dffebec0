import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import DOCUMENTS

PATH = "/v1/sites/brno/preparation"
SHEETS = {
    "site": "brno",
    "sheets": [
        {"side": "site", "device": "brno-sw1:up", "platform": "linux_bridge", "lines": ["ip link set up mtu 1504"]},
        {
            "side": "backbone",
            "device": "the backbone's device at brno-sw1:up",
            "platform": "cisco_ios",
            "lines": ["interface <port>"],
            "notes": ["Look twice."],
            "to_fill": {"<port>": "the backbone's port"},
        },
    ],
}


def test_each_sheet_has_notes_lines_and_placeholders(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOCUMENTS, f"{PATH}?platform=cisco_ios", SHEETS)
    monkeypatch.setitem(DOCUMENTS, PATH, SHEETS)
    result = run("site", "prepare", "brno", "--platform", "cisco_ios")
    assert result.exit_code == 0
    assert result.stdout == (
        "# for the site's administrators: brno-sw1:up (linux_bridge), once\n"
        "ip link set up mtu 1504\n"
        "\n"
        "# for the backbone's administrators: the backbone's device at brno-sw1:up (cisco_ios), once\n"
        "# - Look twice.\n"
        "interface <port>\n"
        "# replace:\n"
        "#   <port>  the backbone's port\n"
    )


def test_a_port_without_a_platform_is_refused(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOCUMENTS, PATH, SHEETS)
    result = run("site", "prepare", "brno", "--port", "Gi1/0/1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "virtcloud: --port: expected --platform too, because only the commands of a platform contain the port; got no "
        "--platform\n"
    )


def test_the_core_port_of_edges_needs_no_platform(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOCUMENTS, PATH, SHEETS)
    assert run("site", "prepare", "brno", "--core-port", "Te1/1/1").exit_code == 0
