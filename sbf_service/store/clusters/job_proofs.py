"""Proofs of jobs: a host requests a job's cluster, and the batch server confirms the job.

A host cannot prove that a job runs there, so SBF records a question, which the agent on the batch server's host
answers. Until the answer is that the job runs, the request of the job's first host fails with JobUnproven. This answer,
the *proof*, contains the job's owner, hosts and network, which the request must match. A proof permits the creation of
one cluster.
"""

from datetime import timedelta
from typing import Final

from sqlalchemy import delete, func, select, update

from sbf_service.domain.rights import JobClusterRequest, check_job_confirmation
from sbf_service.store.networks.networks import find_network
from sbf_service.store.tables.service_tables import JobQuestionRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import Forbidden, JobUnproven
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import JobStatement

JOBS_TOPIC: Final = "jobs"
"""The topic under which the change feed announces questions to the waiting agents of batch servers."""
QUESTION_LIFETIME: Final = timedelta(minutes=5)
"""The lifetime of a question and its answer. No prologue script waits this long for a cluster."""
MAX_OPEN_QUESTIONS: Final = 200


def check_job_proof(
    unit: Unit, key: str, spec: ClusterSpec, starter: str, *, use: bool
) -> JobUnproven | Forbidden | None:
    """Return None if the host ``starter`` may request a job's cluster, otherwise an error.

    With ``use``, delete the proof after a successful check. Without a proof, return JobUnproven, and record the
    question, unless it is already open. If the proof does not cover the request (`check_job_confirmation`), delete it,
    and return Forbidden: the job may change or run again, so its next request needs a new proof. Commit the transaction
    before raising the returned error.
    """
    question = _make_question(unit, key, spec, starter)
    row = unit.session.get(JobQuestionRow, (key, starter))
    if (
        row is not None
        and row.answer is not None
        and row.question == question.text
        and row.asked_at > unit.now - QUESTION_LIFETIME
    ):
        statement = JobStatement.model_validate_json(row.answer)
        if statement.runs:
            try:
                check_job_confirmation(question, statement, _find_network_id(unit, statement.network))
            except Forbidden as refusal:
                unit.session.delete(row)
                return refusal
            if use:
                unit.session.execute(delete(JobQuestionRow).where(JobQuestionRow.key == key))
            return None
        return _record_question(unit, question, f"the server answered: job {key} {statement.words}")
    if (
        row is not None
        and row.answer is None
        and row.question == question.text
        and row.asked_at > unit.now - QUESTION_LIFETIME
    ):
        return _make_unproven(question)
    return _record_question(unit, question)


def list_unproven_jobs(unit: Unit, server: str) -> list[ClusterKey]:
    """Return the jobs that have an open question and belong to the batch server ``server``, sorted by key."""
    of_server = JobQuestionRow.key.endswith(f".{server.lower()}", autoescape=True)
    unanswered = JobQuestionRow.answer.is_(None), JobQuestionRow.asked_at > unit.now - QUESTION_LIFETIME
    found = select(JobQuestionRow.key).where(of_server, *unanswered).distinct().order_by(JobQuestionRow.key)
    return [ClusterKey(key) for key in unit.session.scalars(found)]


def record_job_proof(unit: Unit, key: str, statement: JobStatement) -> None:
    """Record the batch server's answer about a job, for every host that asked. Idempotent."""
    unit.session.execute(
        update(JobQuestionRow).where(JobQuestionRow.key == key).values(answer=statement.model_dump_json())
    )


def _make_question(unit: Unit, key: str, spec: ClusterSpec, starter: str) -> JobClusterRequest:
    return JobClusterRequest(
        key, starter, spec.owner, spec.all_hosts, spec.joins, _find_network_id(unit, spec.joins), spec.sites
    )


def _find_network_id(unit: Unit, name_or_key: str | None) -> str | None:
    clusters = [] if name_or_key is None else find_network(unit, name_or_key)
    return clusters[0].id if clusters else None


def _record_question(unit: Unit, question: JobClusterRequest, reason: str = "") -> JobUnproven:
    """Record a question, unless the host has `MAX_OPEN_QUESTIONS` others, and return the error for the host."""
    unit.session.execute(delete(JobQuestionRow).where(JobQuestionRow.asked_at <= unit.now - QUESTION_LIFETIME))
    others = JobQuestionRow.starter == question.starter, JobQuestionRow.key != question.key
    if (
        unit.session.scalar(select(func.count()).select_from(JobQuestionRow).where(*others)) or 0
    ) >= MAX_OPEN_QUESTIONS:
        return JobUnproven(
            f"{question.starter} waits for the confirmation of {MAX_OPEN_QUESTIONS} other jobs already: try again later"
        )
    row = JobQuestionRow(
        key=question.key, starter=question.starter, question=question.text, asked_at=unit.now, answer=None
    )
    unit.session.merge(row)
    unit.session.flush()
    unit.changed.add(JOBS_TOPIC)
    return _make_unproven(question, reason)


def _make_unproven(question: JobClusterRequest, reason: str = "") -> JobUnproven:
    return JobUnproven(
        f"cluster {question.key}: the batch server has not confirmed that job {question.key} of {question.owner} runs "
        f"on {', '.join(question.hosts)}: {reason or 'the question was sent'}; try again. The answer comes from the "
        "agent on the batch server's host, whose agent.toml must have the section [scheduler]"
    )
