"""Fixtures of all tests: databases of each kind and a real Open vSwitch.

If ``VIRTCLOUD_REQUIRE_LAB`` is set, a test that needs a lab, PostgreSQL or Open vSwitch fails instead of being
skipped.
"""

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from virtcloud.lab.state import DEFAULT_STATE_FOLDER, STATE_FOLDER_VARIABLE

if TYPE_CHECKING:
    from support.programs.ovs_daemons import Daemons
    from support.programs.postgres import PostgresServer

pytest_plugins = ["compiled_tests", "distribution"]

REQUIRED = "VIRTCLOUD_REQUIRE_LAB"  # set in CI
DEMANDING = ("lab", "postgresql", "openvswitch")
hypothesis.settings.register_profile("no time limit", deadline=None, print_blob=True)
hypothesis.settings.load_profile("no time limit")


def pytest_configure() -> None:
    """Restore the default handlers of SIGINT and SIGHUP. In a parallel run, set the lab's state folder.

    A shell starts background processes with SIGINT ignored, and nohup(1) starts programs with SIGHUP ignored. Programs
    that the tests start would also ignore these signals. Each process of a parallel run has its own state folder.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if process := os.environ.get("PYTEST_XDIST_WORKER"):
        os.environ[STATE_FOLDER_VARIABLE] = f"{os.environ.get(STATE_FOLDER_VARIABLE, DEFAULT_STATE_FOLDER)}-{process}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a required test as failed if it is skipped, with the reason of the skip."""
    report = yield
    if (
        report.skipped
        and any(item.get_closest_marker(name) for name in DEMANDING)
        and os.environ.get(REQUIRED)
        and not hasattr(report, "wasxfail")
    ):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"{REQUIRED} is set, and this would not be tested: {reason}"
    return report


@pytest.fixture(scope="session")
def postgres_server() -> Iterator["PostgresServer"]:
    from support.programs.postgres import NoPostgresError, programs, running  # noqa: PLC0415 - imported only by tests that need it

    try:
        programs()
    except NoPostgresError as error:
        pytest.skip(str(error))
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: "PostgresServer") -> str:
    """The name of a PostgreSQL database with all tables. Other databases are copies of this database."""
    from support.migrated import migrate_once  # noqa: PLC0415 - imported only by tests that need it

    name = postgres_server.new_database()
    migrate_once(postgres_server.url(name))
    return name


@pytest.fixture
def empty_postgresql(postgres_server: "PostgresServer") -> Iterator[str]:
    name = postgres_server.new_database()
    yield postgres_server.url(name)
    postgres_server.drop(name)


@pytest.fixture(scope="session")
def recycled_postgresql(postgres_server: "PostgresServer", postgres_template: str) -> str:
    """The name of the PostgreSQL database that all tests of this process use in turn."""
    name = postgres_server.new_database(postgres_template)
    postgres_server.keep_rows(name)
    return name


@pytest.fixture
def postgresql(postgres_server: "PostgresServer", recycled_postgresql: str) -> Iterator[str]:
    """The address of a PostgreSQL database with all tables. The tables contain only the rows written by migrations."""
    yield postgres_server.url(recycled_postgresql)
    postgres_server.restore_rows(recycled_postgresql)


@pytest.fixture(scope="session")
def open_vswitch(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Daemons"]:
    from support.programs.ovs_daemons import daemons, missing  # noqa: PLC0415 - imported only by tests that need it

    if lacking := missing():
        pytest.skip(f"NOT TESTED: {', '.join(lacking)} missing: apt-get install openvswitch-switch")
    with daemons(tmp_path_factory.mktemp("ovs")) as running:
        yield running


BOTH_KINDS = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))


@pytest.fixture
def sqlite_database(tmp_path: Path) -> str:
    from support.migrated import create_sqlite  # noqa: PLC0415 - imported only by tests that need it

    create_sqlite(address := f"sqlite:///{tmp_path / 'sbf.db'}")
    return address


@pytest.fixture(params=BOTH_KINDS)
def database(request: pytest.FixtureRequest) -> str:
    """The address of a database with all tables. Each test with this fixture runs on SQLite and on PostgreSQL.

    Tests that do not depend on the kind of database override this fixture with ``sqlite_database``.
    """
    found: str = request.getfixturevalue("sqlite_database" if request.param == "sqlite" else "postgresql")
    return found


@pytest.fixture(params=BOTH_KINDS)
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without tables. Each test with this fixture runs on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sbf.db'}"
    found: str = request.getfixturevalue("empty_postgresql")
    return found
