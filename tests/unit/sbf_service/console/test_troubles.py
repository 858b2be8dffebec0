"""Tests that each trouble has a remedy that agrees with the runbook and the agent's messages."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sbf_service.console.troubles import find_element_troubles, find_remedy, find_site_troubles
from sbf_service.domain.agent_messages import AGENT_MESSAGES, SILENCE, AgentMessage
from virtcloud.model.element import ElementKind
from virtcloud.model.element_views import ElementView, SiteView
from virtcloud.model.errors import ElementError, Refused, Unreachable, Unsafe
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

ROOT = Path(__file__).parents[4]
NOW = datetime(2026, 11, 24, tzinfo=UTC)
COMMAND = re.compile(r"(?:virtcloud|systemctl) [a-z]+(?: [a-z-]+)?")
DEVICES, MACHINES = (ElementKind.SWITCH, ElementKind.EDGE), (ElementKind.HOST, ElementKind.GATEWAY)


def element(kind: ElementKind, **changes: object) -> ElementView:
    values = {"name": "brno-x1", "kind": kind, "site": "brno", "wanted_revision": 2, "confirmed_revision": 2}
    return ElementView.model_validate(values | {"last_seen": NOW} | changes)


def remedies(view: ElementView) -> list[str]:
    return [trouble.remedy for trouble in find_element_troubles(view, "/console")]


def read_runbook(alert: str) -> str:
    text = (ROOT / "docs/how-to/runbook.md").read_text()
    return text.partition(f"## {alert}\n")[2].partition("\n## ")[0]


def list_errors(root: type[ElementError]) -> list[type[ElementError]]:
    return [root, *(error for kind in root.__subclasses__() for error in list_errors(kind))]


def test_the_errors_of_elements_are_these_four() -> None:
    """If you add an error class, add a remedy for the error, then add the class to this test."""
    own = [error for error in list_errors(ElementError) if error.__module__ == ElementError.__module__]
    assert own == [ElementError, Unreachable, Refused, Unsafe]


@pytest.mark.parametrize("kind", list(ElementKind))
@pytest.mark.parametrize("reachable", [True, False])
def test_every_error_of_an_element_has_a_remedy(kind: ElementKind, reachable: bool) -> None:
    """If ``reachable`` is true, the element refused a change, or the change was unsafe."""
    (remedy,) = remedies(element(kind, trouble="something unknown", reachable=reachable))
    assert COMMAND.search(remedy), remedy
    assert "SBF tries again by itself." in remedy


@pytest.mark.parametrize("kind", list(ElementKind))
@pytest.mark.parametrize(
    "state",
    [{"last_seen": None}, {"reachable": False}, {"unsaved_since": NOW}, {"notices": ("web.example.org: no answer",)}],
)
def test_every_state_of_an_element_has_a_remedy(kind: ElementKind, state: dict[str, object]) -> None:
    """A device that was never read is not in trouble: SBF first reads a device when a cluster needs the device."""
    found = remedies(element(kind, **state))
    assert all(remedy.endswith(".") for remedy in found)
    assert found or (kind in DEVICES and state == {"last_seen": None})


@pytest.mark.parametrize("known", AGENT_MESSAGES, ids=lambda known: known.shown)
def test_each_message_of_the_page_has_its_own_remedy(known: AgentMessage) -> None:
    assert find_remedy(known.shown, "brno-h1", is_device=False) == known.remedy


@pytest.mark.parametrize("known", AGENT_MESSAGES, ids=lambda known: known.shown)
def test_the_agent_still_writes_each_message(known: AgentMessage) -> None:
    """Each text by which the console recognizes a message occurs in the source of the agent or of SBF."""
    files = [*ROOT.glob("virtcloud/agent/**/*.py"), *ROOT.glob("sbf_service/*/*.py")]
    source = "\n".join(path.read_text() for path in files if path.name != "agent_messages.py")
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    assert [part for part in known.parts if part not in joined] == []


def test_an_older_agents_text_about_a_foreign_table_is_recognized() -> None:
    older = "this host has a table bridge virtcloud of nftables that virtcloud did not create; left unchanged"
    assert find_remedy(older, "brno-h1", is_device=False).startswith("Rename the table, or delete it: nft delete table")


def test_a_remedy_has_no_markdown() -> None:
    assert not any(character in known.remedy for known in AGENT_MESSAGES for character in "`[]")


@pytest.mark.parametrize(
    ("alert", "view"),
    [
        ("VirtcloudElementUnreachable", element(ElementKind.SWITCH, reachable=False)),
        ("VirtcloudAgentSilent", element(ElementKind.HOST, reachable=False, trouble=SILENCE.shown)),
        ("VirtcloudElementTroubled", element(ElementKind.SWITCH, trouble="% Invalid input")),
        ("VirtcloudElementUnsaved", element(ElementKind.SWITCH, unsaved_since=NOW)),
    ],
)
def test_remedies_of_elements_name_commands_of_the_runbook(alert: str, view: ElementView) -> None:
    section = read_runbook(alert) + read_runbook("VirtcloudChangeStuck")
    commands = {command for remedy in remedies(view) for command in COMMAND.findall(remedy)}
    assert commands
    assert [command for command in commands if command not in section] == []


def test_remedies_of_pools_name_commands_of_the_runbook() -> None:
    section = read_runbook("VirtcloudPoolNearlyExhausted")
    for pool in ("", "100"):
        vlans = {"pool": pool, "claimed": pool, "quarantined": "", "free": ""}
        view = SiteView(name=Name("brno"), **{key: VlanSet.parse(text) for key, text in vlans.items()})
        (trouble,) = find_site_troubles(view, "/console")
        assert COMMAND.findall(trouble.remedy) == ["virtcloud pool set"]
    assert "virtcloud pool set" in section


def test_an_agent_that_never_called_must_be_installed() -> None:
    silence = f"{SILENCE.parts[0]} yet: install and start the agent"
    (remedy,) = remedies(element(ElementKind.HOST, last_seen=None, reachable=False, trouble=silence))
    assert remedy.startswith("Install the agent on brno-x1, with a token of the role agent")
