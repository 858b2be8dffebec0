import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

import pytest

from virtcloud.cli.vpn_profiles import wait_for_gateways
from virtcloud.client.api import Client
from virtcloud.model.errors import ServiceStopping, ServiceUnreachable
from virtcloud.model.values import Name
from virtcloud.model.vpn import PendingElement, VpnProfileView

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
READY = VpnProfileView.model_validate(
    {
        "id": "p1",
        "cluster": "demo",
        "user": "eva",
        "device": "laptop",
        "fingerprint": "00" * 32,
        "gateways": ["gw1"],
        "created_at": NOW,
        "created_by": "eva",
        "expires_at": NOW,
        "lease_ends": NOW,
    }
)
PENDING = READY.model_copy(update={"pending": (PendingElement(element=Name("gw1"), reachable=True),)})


@dataclass
class RestartingSbf:
    """An SBF whose first calls raise ``errors``. Then every element has confirmed the profile."""

    errors: list[ServiceUnreachable] = field(default_factory=list)

    @property
    def sbf(self) -> "RestartingSbf":
        return self

    def profile(self, _key: str, _profile: str, _wait: float) -> VpnProfileView:
        if self.errors:
            raise self.errors.pop()
        return READY


def wait(fake: RestartingSbf) -> None:
    wait_for_gateways(cast("Client", fake), PENDING, "connect")


def test_a_restart_of_sbf_does_not_end_the_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    wait(RestartingSbf([ServiceStopping("this SBF stops; nothing was changed", 1)]))
    assert capsys.readouterr().err.splitlines()[-1] == "ready: connect through gw1"


def test_the_end_of_the_wait_names_what_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtcloud.client.waiting.PATIENCE_S", -1.0)
    with pytest.raises(ServiceUnreachable) as raised:
        wait(RestartingSbf([ServiceStopping("this SBF stops", 1)]))
    assert str(raised.value) == (
        "the profile for device laptop was created, but gw1 had not confirmed the profile when SBF became unreachable; "
        "the profile may work later: virtcloud access list demo (this SBF stops)"
    )
