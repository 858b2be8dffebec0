import logging
from pathlib import Path

import pytest

from sbf_service.bootstrap import build_service
from sbf_service.reconcile.transactions import StoreWorkerTransactions
from sbf_service.settings import ServiceSettings, read_settings
from sbf_service.settings_reload import NEEDS_RESTART, copy_settings, find_changes, reload_settings

FORMER = """
database = "postgresql://sbf:secret@db/sbf"
[timing]
drain_deadline = 60
[credentials.brno]
username = "one"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (path := tmp_path / "sbf.toml").write_text(FORMER)
    return path


def test_every_key_that_needs_a_restart_exists() -> None:
    changes = {change.key for change in find_changes(ServiceSettings(), _all_different())}
    assert changes >= NEEDS_RESTART


def _all_different() -> ServiceSettings:
    images, relay, console = {"folder": "/x"}, {"idle": 1, "sessions_per_user": 1}, {"enabled": False}
    plain = {"allow_plaintext": True, "database": "sqlite:///x", "device_threads": 1, "listen": "[::1]:1"}
    tls = {"tls_certificate": "a", "tls_key": "b", "tls_client_ca": "c"}
    other: dict[str, object] = {"replica": "x", "socket": "/s", "trusted_proxies": ["127.0.0.1"]}
    other["telemetry"] = {"endpoint": "http://c:4318", "ca_file": "/c"}
    return ServiceSettings.model_validate(
        {**plain, **tls, **other, "images": images, "relay": relay, "console": console}
    )


def test_parts_of_the_service_use_reloaded_values(file: Path) -> None:
    database = f"sqlite:///{file.parent}/sbf.db"
    file.write_text(FORMER.replace("postgresql://sbf:secret@db/sbf", database))
    settings = copy_settings(read_settings(file))
    service = build_service(settings)
    timing = "[timing]\ndrain_deadline = 7\nagent_silence = 60\n"
    changed = f'database = "{database}"\nworkers = 3\n{timing}[retention]\naudit_days = 9\n'
    file.write_text(changed + '[credentials.praha]\nusername = "two"\n')
    reload_settings(settings, file)
    worker = service.scheduler.worker
    assert isinstance(worker.transactions, StoreWorkerTransactions)
    assert worker.transactions.timing.drain_deadline == 7
    assert service.scheduler.sweep.timing.drain_deadline == 7
    assert service.heartbeats.max_wait == 30
    assert worker.sessions.settings.credentials.keys() == {"praha"}
    assert (service.scheduler.settings.workers, service.retention.limits.audit_days) == (3, 9)
    service.store.close()


def test_values_that_need_a_restart_are_logged_without_passwords(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = copy_settings(read_settings(file))
    file.write_text(FORMER.replace("@db", "@other").replace("secret", "hidden") + "[relay]\nidle = 9\n")
    with caplog.at_level(logging.INFO):
        reload_settings(settings, file)
    lines = [record.getMessage() for record in caplog.records]
    assert any("setting_needs_restart" in line and "key=database" in line and "@other" in line for line in lines), lines
    assert any("setting_needs_restart" in line and "key=relay.idle" in line and "7200" in line for line in lines), lines
    assert not any("secret" in line or "hidden" in line for line in lines)
    assert (settings.database, settings.relay.idle) == ("postgresql://sbf:secret@db/sbf", 7200)


def test_an_invalid_file_changes_nothing(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = copy_settings(read_settings(file))
    file.write_text(FORMER.replace("60", "7") + "worker = 3\n")
    reload_settings(settings, file)
    assert settings.timing.drain_deadline == 60
    assert "settings_not_reloaded" in caplog.text


@pytest.mark.parametrize(
    "address",
    ["sbf@db:54e2/sbf", "sbf:p@ss:hidden@db/sbf", "sbf@db/sbf?password=hidden"],
    ids=["port", "password with @", "password after ?"],
)
def test_an_invalid_database_address_changes_nothing(
    file: Path, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    settings = copy_settings(read_settings(file))
    file.write_text(FORMER.replace("sbf:secret@db/sbf", address).replace("60", "7"))
    with caplog.at_level(logging.INFO):
        reload_settings(settings, file)
    assert (settings.database, settings.timing.drain_deadline) == ("postgresql://sbf:secret@db/sbf", 60)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["settings_not_reloaded"]
    assert "hidden" not in caplog.text


def test_a_reload_changes_no_default(file: Path) -> None:
    """Without ``copy_settings``, settings objects share nested documents that are default values, such as ``timing``.

    A reload must not change a shared document.
    """
    settings = copy_settings(ServiceSettings())
    file.write_text("[timing]\ndrain_deadline = 7\n")
    reload_settings(settings, file)
    assert ServiceSettings().timing.drain_deadline == 60


def test_tls_is_not_switched_on_while_sbf_runs(file: Path) -> None:
    settings = copy_settings(ServiceSettings())
    file.write_text('tls_certificate = "/a"\ntls_key = "/b"\n')
    reload_settings(settings, file)
    assert settings.tls_certificate is None
