"""Tests that programs start without unneeded libraries. The import of each library takes 0.1 to 1 s."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.migrated import create_sqlite

DEVICE_LIBRARIES = {"lxml", "napalm", "ncclient", "netmiko", "paramiko", "pyeapi"}
MIGRATION_LIBRARIES = {"alembic", "mako"}
SERVICE_LIBRARIES = {"fastapi", "limits", "prometheus_client", "sqlalchemy", "starlette", "uvicorn"}
HOST_LIBRARIES = {"libvirt", "pyroute2"}
TERMINAL_LIBRARIES = {"pygments", "rich"}


def list_imports(code: str, *arguments: str) -> set[str]:
    imported = "[name for name, module in sys.modules.items() if module]"  # the value None blocks an import
    ends = f"import atexit, sys; atexit.register(lambda: print(*{imported})); {code}"
    done = subprocess.run([sys.executable, "-c", ends, *arguments], capture_output=True, text=True, check=True)  # noqa: S603 - our own
    return {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("sbf_service.server", DEVICE_LIBRARIES | MIGRATION_LIBRARIES | HOST_LIBRARIES),
        ("sbf_service.trial", DEVICE_LIBRARIES | MIGRATION_LIBRARIES | SERVICE_LIBRARIES),
        ("virtcloud.agent.bootstrap", DEVICE_LIBRARIES | MIGRATION_LIBRARIES | SERVICE_LIBRARIES | HOST_LIBRARIES),
        ("virtcloud.cli.host, virtcloud.agent.host_bootstrap", {"bcrypt", "cryptography", *TERMINAL_LIBRARIES}),
        ("virtcloud.cli.cluster", DEVICE_LIBRARIES | MIGRATION_LIBRARIES | SERVICE_LIBRARIES | HOST_LIBRARIES),
        ("virtcloud.cli.cluster", {"cryptography", *TERMINAL_LIBRARIES}),
        ("virtcloud.cli.element", {"httpx", "rich", *DEVICE_LIBRARIES, *MIGRATION_LIBRARIES, *SERVICE_LIBRARIES}),
        ("sbf_command", {"httpx", "pydantic", "sbf_service"}),
    ],
)
def test_a_program_imports_no_unneeded_library(module: str, unneeded: set[str]) -> None:
    assert list_imports(f"import {module}") & unneeded == set()


def test_an_agent_without_a_scheduler_imports_no_scheduler() -> None:
    code = "import sys, virtcloud.agent.bootstrap; print(*(name for name in sys.modules if 'torque' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own
    assert done.stdout.strip() == ""


def test_a_migrated_database_is_opened_without_alembic(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'sbf.db'}"
    create_sqlite(database)
    (tmp_path / "sbf.toml").write_text(f'database = "{database}"\n')
    command = ("token", "create", "eva", "--role", "operator", "--config", str(tmp_path / "sbf.toml"))
    imported = list_imports("from sbf_service.__main__ import main; main()", *command)
    assert imported & (DEVICE_LIBRARIES | MIGRATION_LIBRARIES | {"fastapi", "uvicorn"}) == set()
    assert "sqlalchemy" in imported


def test_documents_are_imported_without_reading_source_code() -> None:
    """Pydantic's option for docstrings of attributes would parse the source of all document classes at import."""
    imported = list_imports("import virtcloud.model.element_views, linecache; assert not linecache.cache")
    assert "pydantic" in imported
