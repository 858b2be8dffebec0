"""The tables of users' limits, tokens, sessions with the web console, SSH keys, and images."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Float,
    ForeignKey,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from sbf_service.store.tables.columns import NAME_TYPE, USER_TYPE, UtcDateTime
from sbf_service.store.tables.tables import Base, is_one_of
from virtcloud.model.access import Role


class QuotaRow(Base):
    """The individual limits of a user."""

    __tablename__ = "quotas"

    owner: Mapped[str] = mapped_column(USER_TYPE, primary_key=True)
    clusters: Mapped[int | None]
    sites: Mapped[int | None]
    lease_s: Mapped[float | None] = mapped_column(Float)
    networks: Mapped[int | None] = mapped_column(BigInteger)
    guests: Mapped[int | None] = mapped_column(BigInteger)
    cpus: Mapped[int | None] = mapped_column(BigInteger)
    memory_mb: Mapped[int | None] = mapped_column(BigInteger)
    images_mb: Mapped[int | None] = mapped_column(BigInteger)


class ImageRow(Base):
    """An image of the catalogue. If ``url`` and ``file`` are NULL, SBF itself stores the image's content."""

    __tablename__ = "images"

    name: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    owner: Mapped[str] = mapped_column(USER_TYPE, index=True)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    size: Mapped[int] = mapped_column(BigInteger)
    format: Mapped[str] = mapped_column(NAME_TYPE)
    architecture: Mapped[str] = mapped_column(NAME_TYPE)
    url: Mapped[str | None] = mapped_column(Text)
    file: Mapped[str | None] = mapped_column(Text)
    everybody: Mapped[bool]
    added_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ImageShareRow(Base):
    """A user who may use an image, besides the image's owner."""

    __tablename__ = "image_shares"

    image: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("images.name"), primary_key=True)
    user: Mapped[str] = mapped_column("user_name", USER_TYPE, primary_key=True)


class CertificationRow(Base):
    """The certification of an image for one site."""

    __tablename__ = "image_certifications"

    image: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("images.name"), primary_key=True)
    site: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("sites.name"), primary_key=True)
    by: Mapped[str] = mapped_column("certified_by", Text)
    at: Mapped[datetime] = mapped_column("certified_at", UtcDateTime)


class UserKeyRow(Base):
    """A public SSH key of a user. ``key`` is a line in OpenSSH's format."""

    __tablename__ = "user_keys"

    owner: Mapped[str] = mapped_column(USER_TYPE, primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(50), primary_key=True)
    key: Mapped[str] = mapped_column(Text)
    added_at: Mapped[datetime] = mapped_column(UtcDateTime)
    added_by: Mapped[str] = mapped_column(Text)


class TokenRow(Base):
    """A token, stored as its SHA-256.

    ``sites`` are a site administrator's sites, separated by commas.
    """

    __tablename__ = "tokens"
    __table_args__ = (CheckConstraint(is_one_of("role", Role), name="role"), UniqueConstraint("digest"))

    id: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(USER_TYPE, index=True)
    role: Mapped[str] = mapped_column(NAME_TYPE)
    sites: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    created_by: Mapped[str] = mapped_column(Text)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ConsoleSessionRow(Base):
    """A browser's session with the web console, stored as the SHA-256 of the session's secret.

    A session after a login with a token becomes invalid when the token expires or is revoked. ``name``, ``role`` and
    ``sites`` describe the user at the login.
    """

    __tablename__ = "console_sessions"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    token_id: Mapped[str | None] = mapped_column(NAME_TYPE, ForeignKey("tokens.id"))
    name: Mapped[str] = mapped_column(USER_TYPE)
    role: Mapped[str] = mapped_column(NAME_TYPE)
    sites: Mapped[str] = mapped_column(Text)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
