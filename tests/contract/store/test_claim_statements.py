from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event, text
from support.sbf_fakes.world import World, spec

from sbf_service.store.tables.user_tables import QuotaRow
from sbf_service.store.users.quotas import MAX_LIMITS_AT_ONCE, NO_LIMITS, find_limits, put_quota
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


def test_an_invalid_quota_of_another_user_changes_no_limits(world: World) -> None:
    put_quotas(world, "alice")
    with world.store.change() as unit:
        unit.session.add(QuotaRow(owner="mallory", lease_s=1e12))
    assert read_limits(world, "alice", "bob") == [ONE_CLUSTER, NO_LIMITS]


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


@contextmanager
def recorded_windows(world: World) -> Iterator[list[tuple[str, object]]]:
    """Yield the queries for free VLAN IDs in the context, with their parameters."""
    found: list[tuple[str, object]] = []

    def record(_connection: object, _cursor: object, statement: str, parameters: object, *_others: object) -> None:
        if "FROM free_numbers" in statement and statement.startswith("SELECT"):
            found.append((statement, parameters))

    event.listen(world.store.engine, "before_cursor_execute", record)
    yield found
    event.remove(world.store.engine, "before_cursor_execute", record)


def read_plan(world: World, statement: str, parameters: object) -> list[str]:
    """Return PostgreSQL's or SQLite's plan of a statement.

    PostgreSQL chooses the index of release times only if the table has hundreds of thousands of rows. Therefore,
    exclude PostgreSQL's other ways to read the table, in a transaction that is rolled back.
    """
    explain = "EXPLAIN" if world.store.has_scopes else "EXPLAIN QUERY PLAN"
    with world.store.engine.connect() as connection:
        if world.store.has_scopes:
            connection.execute(text("ALTER TABLE free_numbers DROP CONSTRAINT pk_free_numbers"))
            for way in ("seqscan", "bitmapscan"):
                connection.execute(text(f"SET LOCAL enable_{way} = off"))
        rows = connection.exec_driver_sql(f"{explain} {statement}", parameters).all()  # type: ignore[arg-type] # the parameters of an event
        connection.rollback()
    return [str(row[-1]) for row in rows]


def test_a_claim_looks_up_no_vlans_of_other_sites_by_release_time(world: World) -> None:
    """By the index of release times, the database would read all free VLAN IDs of the site for each VLAN ID."""
    world.put("first", spec("brno-h1", "praha-h1"))
    with recorded_windows(world) as found:
        world.put("second", spec("brno-h1", "praha-h1"))
    ((statement, parameters),) = found
    plan = read_plan(world, statement, parameters)
    of_other_sites = plan[next(number for number, line in enumerate(plan) if "free_numbers_1" in line) :]
    assert not any("since" in line for line in of_other_sites if "Index Cond" in line or "(site=?" in line)
    assert "size" not in str(parameters)
