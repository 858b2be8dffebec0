import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import DOCUMENTS, SITE, FakeSbf

from virtcloud.client.sbf import SbfClient
from virtcloud.model.element_views import SiteView

QUARANTINED = {
    "vlan": 112,
    "cluster": "demo",
    "cluster_id": "4c1f",
    "since": "2026-07-01T12:00:00Z",
    "elements": {"brno-sw": "brno"},
}
CLEAN = ("pool", "clean", "brno", "112", "--reason", "scrapped")
PATH = "/v1/sites/brno/quarantine/112/clean"


def test_a_pool_shows_quarantined_vlan_ids_and_unconfirmed_elements(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DOCUMENTS, "/v1/sites/brno", {**SITE, "quarantined": "112", "quarantine": [QUARANTINED]})
    lines = run("pool", "show", "brno").stdout.splitlines()
    assert (lines[0], lines[-1].split()[:2]) == ("100-199", ["112", "demo"])
    assert lines[-1].endswith("brno-sw at brno")


def test_a_vlan_id_is_declared_clean_with_a_reason(
    run: RunCommand, sbf: FakeSbf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DOCUMENTS, PATH, SITE)
    assert run(*CLEAN).stdout == "VLAN 112 is not in quarantine at brno\n"
    assert sbf.put == [(PATH, {"reason": "scrapped"})]


def test_a_declaration_for_a_cluster_has_its_id(run: RunCommand, sbf: FakeSbf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOCUMENTS, "/v1/sites/brno", {**SITE, "quarantine": [QUARANTINED]})
    query: list[str | None] = []
    declare = SbfClient.declare_clean

    def record(client: SbfClient, site: str, vlan: int, *, reason: str, cluster_id: str | None) -> SiteView:
        query.append(cluster_id)
        return declare(client, site, vlan, reason=reason)

    monkeypatch.setattr(SbfClient, "declare_clean", record)
    monkeypatch.setitem(DOCUMENTS, PATH, SITE)
    assert (run(*CLEAN, "--cluster", "demo").exit_code, query, len(sbf.put)) == (0, ["4c1f"], 1)


@pytest.mark.parametrize(
    ("quarantine", "seen"), [([QUARANTINED], "that of cluster demo"), ([], "no quarantine")], ids=["later", "none"]
)
def test_the_quarantine_of_another_cluster_is_not_declared_clean(
    run: RunCommand, sbf: FakeSbf, monkeypatch: pytest.MonkeyPatch, quarantine: list[object], seen: str
) -> None:
    monkeypatch.setitem(DOCUMENTS, "/v1/sites/brno", {**SITE, "quarantine": quarantine})
    result = run(*CLEAN, "--cluster", "former")
    assert (result.exit_code, sbf.put) == (1, [])
    assert f"VLAN 112 at brno: expected the quarantine of cluster former, found {seen}; nothing was" in result.stderr


def test_elements_without_confirmation_are_named(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    remaining = {**QUARANTINED, "elements": {"praha-sw": "praha"}}
    monkeypatch.setitem(DOCUMENTS, PATH, {**SITE, "quarantine": [remaining]})
    assert run(*CLEAN).stdout == (
        "VLAN 112 is still quarantined, because these elements have not confirmed the removal of the cluster: praha-sw "
        "at praha; declare the VLAN ID clean at these sites too\n"
    )


def test_a_declaration_without_a_reason_is_not_sent(run: RunCommand, sbf: FakeSbf) -> None:
    blank = list(CLEAN)
    blank[blank.index("--reason") + 1] = " "
    assert (run(*blank).exit_code, sbf.put) == (2, [])


def test_a_pool_shows_vlan_ids_in_other_use(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    since = "2026-07-01T12:00:00Z"
    named = {"vlan": 150, "element": "brno-sw", "name": "offices", "since": since, "read_at": since}
    carried = {"vlan": 151, "element": "brno-sw", "ports": ["Gi1/0/8", "Gi1/0/9"], "since": since, "cluster": "demo"}
    monkeypatch.setitem(DOCUMENTS, "/v1/sites/brno", {**SITE, "other_use": [named, carried]})
    lines = run("pool", "show", "brno").stdout.splitlines()
    assert lines[-2].split()[:3] == ["150", "brno-sw", "offices"]
    assert lines[-1].split()[:4] == ["151", "brno-sw", "Gi1/0/8,", "Gi1/0/9"]
    assert lines[-1].split()[-2:] == ["never", "demo"]
