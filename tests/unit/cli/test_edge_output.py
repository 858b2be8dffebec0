import json

import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import DOCUMENTS, SWITCH, FakeSbf

EDGE = SWITCH | {"name": "brno-pe", "kind": "edge"}
CIRCUIT = {"transport": "evpn", "port": "ac1", "vlan": 100, "service": 10100}
REMNANT = {"transport": "evpn", "service": 10107}
WITHOUT_SERVICE = {"transport": "evpn", "service": 0, "port": "ac1", "vlan": 109}
CHANGE = {"clear": [REMNANT, WITHOUT_SERVICE], "remove": [CIRCUIT | {"vlan": 101, "service": 10101}], "add": [CIRCUIT]}
LINES = [
    "  ! service 10107 of evpn: remnant",
    "  ! ac1: VLAN 109 in no service: remnant",
    "  - ac1: VLAN 101 in service 10101 of evpn",
    "  + ac1: VLAN 100 in service 10100 of evpn",
]


@pytest.fixture(autouse=True)
def _edge(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = {
        "/v1/elements": [SWITCH | {"carried": {"p1": "100,102"}}, EDGE | {"circuits": [CIRCUIT]}],
        "/v1/elements/brno-pe": EDGE | {"circuits": [CIRCUIT]},
        "/v1/elements/brno-pe/difference": {"element": "brno-pe", "kind": "edge", "site": "brno", "edge": CHANGE},
        "/v1/elements/brno-pe/reconcile": {"element": EDGE, "mended": CHANGE},
        "/v1/audit": [
            {
                "id": 7,
                "at": "2026-07-01T12:00:00Z",
                "who": "sbf",
                "what": "edge_change",
                "element": "brno-pe",
                "difference": CHANGE,
            }
        ],
    }
    for path, document in documents.items():
        monkeypatch.setitem(DOCUMENTS, path, document)


def test_the_list_shows_observed_vlans_and_circuits(run: RunCommand) -> None:
    rows = [line.split() for line in run("element", "list").stdout.splitlines()]
    assert [row[-3:] for row in rows[1:]] == [["never", "VLAN", "100,102"], ["never", "1", "circuit"]]


def test_an_edge_is_shown_with_its_circuits(run: RunCommand) -> None:
    rows = [line.split() for line in run("element", "show", "brno-pe").stdout.splitlines()[3:]]
    assert rows == [["port", "VLAN", "transport", "service"], ["ac1", "100", "evpn", "10100"]]


def test_an_edges_difference_has_a_line_per_circuit(run: RunCommand) -> None:
    lines = run("element", "diff", "brno-pe").stdout.splitlines()
    assert lines == ["edge brno-pe at brno, never read:", *LINES]


def test_a_reconciliation_of_an_edge_prints_the_changes(run: RunCommand) -> None:
    assert run("element", "reconcile", "brno-pe").stdout.splitlines() == ["edge brno-pe was read and changed:", *LINES]


def test_the_audit_log_has_changes_of_an_edge(run: RunCommand) -> None:
    assert run("audit").stdout.splitlines()[1:] == [f"  {line}" for line in LINES]


def test_json_of_an_edges_difference_contains_circuits(run: RunCommand) -> None:
    difference = json.loads(run("element", "diff", "brno-pe", "--json").stdout)
    assert (difference["edge"]["add"], difference["switch"]) == ([CIRCUIT], None)


@pytest.mark.parametrize(
    ("kind", "service", "expected"),
    [
        ("evpn", 10100, "evpn: VNI 10100"),
        ("vpls", 7, "vpls: VPN id 7"),
        ("qinq", 3000, "qinq: S-tag 3000"),
        ("direct", None, "direct"),
    ],
)
def test_a_dry_run_prints_transport_and_vlan_ids(
    run: RunCommand, sbf: FakeSbf, kind: str, service: int | None, expected: str
) -> None:
    joined = {"transport": kind, "kind": kind, "service": service}
    vlans = {"praha": 200, "brno": 100}
    sbf.preview = {"key": "demo", "created": True, "vlans": vlans, "joined": joined, "elements": []}
    assert run("cluster", "create", "demo", "--host", "brno-h1", "--image", "busybox", "--dry-run").stdout == (
        f"cluster demo would be created with VLAN 100 at brno, VLAN 200 at praha, joined by {expected}; "
        "nothing was changed\n"
    )


@pytest.mark.parametrize(("mtu", "shown"), [(None, ""), (1450, ", MTU 1450")])
def test_a_cluster_is_shown_with_its_transport(run: RunCommand, sbf: FakeSbf, mtu: int | None, shown: str) -> None:
    run("cluster", "create", "demo", "--host", "brno-h1", "--image", "busybox")
    joined = {"transport": "evpn", "kind": "evpn", "service": 10100, "mtu": mtu}
    sbf.clusters["demo"] = sbf.clusters["demo"].model_validate(
        sbf.clusters["demo"].model_dump(mode="json") | {"joined": joined}
    )
    assert f"sites joined by evpn: VNI 10100{shown}" in run("cluster", "show", "demo").stdout.splitlines()
