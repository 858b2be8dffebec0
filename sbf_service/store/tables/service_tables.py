"""The database tables of the service itself: the audit log, job confirmations, secrets and replicas."""

from datetime import datetime

from sqlalchemy import (
    Index,
    Text,
)
from sqlalchemy.orm import Mapped, mapped_column

from sbf_service.store.tables.columns import KEY_TYPE, NAME_TYPE, ROW_NUMBER, UtcDateTime
from sbf_service.store.tables.tables import Base


class AuditRow(Base):
    """A row of the audit log. Rows never contain secrets.

    ``request_id``: the request IDs of the calls that caused the change, separated by commas; None if SBF itself made
    the change.
    """

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_at_id", "at", "id"),
        Index("ix_audit_who_at_id", "who", "at", "id"),
        Index("ix_audit_element_at_id", "element", "at", "id"),
    )

    id: Mapped[int] = mapped_column(ROW_NUMBER, primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    who: Mapped[str] = mapped_column(Text)
    what: Mapped[str] = mapped_column(NAME_TYPE)
    why: Mapped[str | None] = mapped_column(Text)
    element: Mapped[str | None] = mapped_column(NAME_TYPE, index=True)
    cluster_id: Mapped[str | None] = mapped_column(NAME_TYPE, index=True)
    difference: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(Text)


class JobQuestionRow(Base):
    """The question whether the host ``starter`` may request a job's cluster, and the batch server's answer (JSON)."""

    __tablename__ = "job_questions"

    key: Mapped[str] = mapped_column(KEY_TYPE, primary_key=True)
    starter: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    question: Mapped[str] = mapped_column(Text)
    asked_at: Mapped[datetime] = mapped_column(UtcDateTime)
    answer: Mapped[str | None] = mapped_column(Text)


class ServiceSecretRow(Base):
    """A secret of the service, as hexadecimal digits, which a migration created."""

    __tablename__ = "service_secrets"

    name: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class ReplicaRow(Base):
    """A replica, whose ``wrote_at`` the readiness probe updates to test whether the database can be written."""

    __tablename__ = "replicas"

    name: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    wrote_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ServiceTimeRow(Base):
    """The time of the last event of a kind, such as ``backup``."""

    __tablename__ = "service_times"

    name: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
