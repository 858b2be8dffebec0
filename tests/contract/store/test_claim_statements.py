"""Tests of the number of statements of a claim."""

from collections.abc import Iterator
from contextlib import contextmanager

from sbf_fakes.world import World, spec
from sqlalchemy import event

from sbf_service.store.quotas import MAX_LIMITS_AT_ONCE, NO_LIMITS, find_limits, put_quota
from virtcloud.model.access import QuotaLimits
from virtcloud.model.values import UserName

ONE_CLUSTER = QuotaLimits(clusters=1)


@contextmanager
def recorded_statements(world: World, part: str) -> Iterator[list[str]]:
    """Yield the statements of the context that contain ``part``."""
    found: list[str] = []

    def record(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        if part in statement:
            found.append(statement)

    event.listen(world.store.engine, "before_cursor_execute", record)
    yield found
    event.remove(world.store.engine, "before_cursor_execute", record)


def put_quotas(world: World, *users: str) -> None:
    with world.store.change() as unit:
        for user in users:
            put_quota(unit, UserName(user), ONE_CLUSTER)


def read_limits(world: World, *users: str) -> list[QuotaLimits]:
    with world.store.read() as unit:
        return [find_limits(unit, user, NO_LIMITS) for user in users]


def test_one_query_reads_the_limits_of_several_users(world: World) -> None:
    put_quotas(world, "alice")
    with recorded_statements(world, "FROM quotas") as statements:
        assert read_limits(world, "alice", "bob", "carol") == [ONE_CLUSTER, NO_LIMITS, NO_LIMITS]
    assert len(statements) == 1


def test_the_limits_of_very_many_users_are_read_separately(world: World) -> None:
    users = [f"u{number}" for number in range(2 * MAX_LIMITS_AT_ONCE)]
    put_quotas(world, *users)
    assert read_limits(world, *users, "other") == [ONE_CLUSTER] * len(users) + [NO_LIMITS]


def test_a_changed_quota_applies_in_the_same_transaction(world: World) -> None:
    with world.store.change() as unit:
        found = []
        for limits in (ONE_CLUSTER, NO_LIMITS):
            put_quota(unit, UserName("alice"), limits)
            found.append(find_limits(unit, "alice", NO_LIMITS))
    assert found == [ONE_CLUSTER, NO_LIMITS]


def test_a_claim_with_a_new_key_reads_clusters_once(world: World) -> None:
    world.put("first", spec("brno-h1"))
    with recorded_statements(world, "FROM clusters") as statements:
        world.put("second", spec("brno-h1"))
    assert len(statements) == 1
    assert "clusters.spec" not in statements[0]


def read_plan(world: World, statement: str, parameters: object) -> str:
    """Return PostgreSQL's or SQLite's plan of a statement."""
    explain = "EXPLAIN" if world.store.has_scopes else "EXPLAIN QUERY PLAN"
    with world.store.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"{explain} {statement}", parameters).all()  # type: ignore[arg-type] # the parameters of an event
    return "\n".join(str(row[-1]) for row in rows)


def test_a_claim_looks_up_vlans_of_other_sites_by_primary_key(world: World) -> None:
    """By the index of release times, the database would read all free VLAN IDs of the site for each VLAN ID."""
    world.put("first", spec("brno-h1", "praha-h1"))
    found: list[tuple[str, object]] = []

    def record(_connection: object, _cursor: object, statement: str, parameters: object, *_others: object) -> None:
        if "FROM free_numbers" in statement and statement.startswith("SELECT"):
            found.append((statement, parameters))

    event.listen(world.store.engine, "before_cursor_execute", record)
    world.put("second", spec("brno-h1", "praha-h1"))
    event.remove(world.store.engine, "before_cursor_execute", record)
    ((statement, parameters),) = found
    (of_other_sites,) = [
        line for line in read_plan(world, statement, parameters).splitlines() if "free_numbers_1" in line
    ]
    assert "ix_free_numbers_site_since_vlan" not in of_other_sites
    assert "size" not in str(parameters)
