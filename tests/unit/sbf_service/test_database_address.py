import pytest

from sbf_service.database_address import hide_password, parse_address
from sbf_service.settings import DEFAULT_DATABASE, ServiceSettings
from virtcloud.model.errors import BadInput


@pytest.mark.parametrize(
    "address",
    [
        DEFAULT_DATABASE,
        "sqlite://",
        "sqlite:///sbf.db",
        "sqlite:///file:sbf.db?mode=ro&uri=true",
        "postgresql:///sbf?host=/run/postgresql",
        "postgresql://sbf@a,b/sbf",
        "postgresql:///sbf?host=a:5432&host=b:5433&target_session_attrs=read-write",
        "postgresql://sbf:p%40ss%3Aword@[2001:db8::1]:5432/sbf?options=-c%20search_path%3Dsbf",
        "postgresql+psycopg://sbf@%2Frun%2Fpostgresql/sbf?passfile=/etc/virtcloud/pg@pass",
        "postgresql://sbf@@abstract/sbf",
    ],
)
def test_the_settings_accept_every_usable_address(address: str) -> None:
    assert ServiceSettings.model_validate({"database": address}).database == address


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("/var/lib/hunter2.db", "found a text that is no address"),
        ("postgresql://sbf:p@ss:hunter2@db/sbf", "found a port that is no number"),
        ("postgresql://sbf:p@hunter2@db/sbf", "found a host or database that contains '@': write %40 for each '@'"),
        ("postgresql://sbf:p@s/hunter2@db/sbf", "found a host or database that contains '@': write %40 for each '@'"),
        ("postgresql://sbf@db/sbf?password=hunter2", "found a password after '?'"),
        ("mysql://sbf:hunter2@db/sbf", "found an address of neither SQLite nor PostgreSQL"),
    ],
)
def test_no_refusal_quotes_the_address(address: str, found: str) -> None:
    with pytest.raises(BadInput) as raised:
        parse_address(address)
    assert found in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert raised.value.__context__ is None or raised.value.__suppress_context__


@pytest.mark.parametrize(
    "address", ["postgresql:///sbf?host=/run/postgresql", "postgresql://sbf@db/sbf?passfile=/etc/virtcloud/pgpass"]
)
def test_paths_in_the_address_are_legible_in_the_log(address: str) -> None:
    assert hide_password(address) == address


def test_the_address_in_the_log_has_no_password() -> None:
    assert hide_password("postgresql://sbf:hunter2@db/sbf") == "postgresql://sbf:***@db/sbf"
