"""Public SSH keys of users. A new cluster gets the current keys of its owner."""

from sqlalchemy import func, select

from sbf_service.domain.admission import RequestLimits
from sbf_service.store.tables.user_tables import UserKeyRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.errors import BeyondLimit, NotFound
from virtcloud.model.guest_seed import PublicKey
from virtcloud.model.message_text import count_of
from virtcloud.model.ssh_keys import KeyFingerprint, UserKey, UserKeyView
from virtcloud.model.values import UserName


def list_user_keys(unit: Unit, user: UserName) -> list[UserKeyView]:
    """Return the keys of a user, oldest first."""
    found = select(UserKeyRow).where(UserKeyRow.owner == user).order_by(UserKeyRow.added_at, UserKeyRow.fingerprint)
    return [_make_view(row) for row in unit.session.scalars(found)]


def add_user_key(unit: Unit, user: UserName, key: UserKey, limits: RequestLimits) -> tuple[UserKeyView, bool]:
    """Add a user's key, and return the key's view and whether the key is new. Idempotent.

    The stored comment of an existing key stays. Raise BeyondLimit if the user has the maximum number of keys.
    """
    row = unit.session.get(UserKeyRow, (user, key.fingerprint))
    if row is not None:
        return _make_view(row), False
    count = unit.session.scalar(select(func.count()).where(UserKeyRow.owner == user)) or 0
    if count >= limits.keys:
        raise BeyondLimit(
            f"{user} already has {count_of(count, 'SSH key')} (limit {limits.keys}): remove a key with 'virtcloud key "
            "remove'; the limit is 'limits.keys' in the settings of this SBF"
        )
    row = UserKeyRow(owner=user, fingerprint=key.fingerprint, key=key, added_at=unit.now, added_by=unit.who)
    unit.session.add(row)
    unit.session.flush()
    record_audit(unit, "key_added", why=f"{user}: {key.kind} {key.fingerprint}")
    return _make_view(row), True


def remove_user_key(unit: Unit, user: UserName, fingerprint: KeyFingerprint) -> UserKeyView:
    """Remove a key of a user, and return the key's view. Raise NotFound if the user has no such key."""
    row = unit.session.get(UserKeyRow, (user, fingerprint))
    if row is None:
        raise NotFound(f"{user} has no SSH key {fingerprint}; 'virtcloud key list' shows all keys")
    view = _make_view(row)
    unit.session.delete(row)
    unit.session.flush()
    record_audit(unit, "key_removed", why=f"{user}: {fingerprint}")
    return view


def _make_view(row: UserKeyRow) -> UserKeyView:
    return UserKeyView(
        user=UserName(row.owner),
        fingerprint=KeyFingerprint(row.fingerprint),
        key=PublicKey(row.key),
        added_at=row.added_at,
        added_by=row.added_by,
    )
