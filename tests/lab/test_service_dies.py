from pathlib import Path

import pytest

from virtcloud.lab import Lab, LabFailed, node_services, read_lab_file
from virtcloud.lab.fabric.plan import NodeService
from virtcloud.lab.state import LabState, find_remains

pytestmark = pytest.mark.lab

PLAIN = Path(__file__).parent / "topologies/plain.yaml"


def test_a_failed_start_shows_the_log_and_leaves_no_remains(
    own_state: LabState, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = NodeService("sshd", ("sh", "-c", "sleep 0.1; echo out of memory; exit 3"))
    monkeypatch.setattr(node_services, "sshd_service", lambda _address: short)
    with pytest.raises(LabFailed, match=r"brno-sw1: sshd died \(3\) soon after its start\n .*\n    out of memory"):
        Lab.up(read_lab_file(PLAIN), state=own_state)
    assert find_remains(own_state) == []
