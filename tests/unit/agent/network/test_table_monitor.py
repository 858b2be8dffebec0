import pytest

from virtcloud.agent.network import table_monitor
from virtcloud.agent.network.table_monitor import TableMonitor
from virtcloud.agent.supervision import start_unsupervised


def test_a_kernel_without_notices_leaves_no_open_socket(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel has no multicast group with the ID 10000, so the socket cannot join the group.

    If the socket stayed open, Python would warn. pytest turns this warning into an error.
    """
    monkeypatch.setattr(table_monitor, "NFNLGRP_NFTABLES", 10_000)
    TableMonitor("virtcloud", lambda: None).start(start_unsupervised)
    assert "packet_filter_not_monitored" in caplog.text
