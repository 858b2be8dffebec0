"""Whether a host may ask for a job's cluster: what the batch system's server must have said of that job. Pure."""

from dataclasses import dataclass

from virtcloud.model.errors import Forbidden
from virtcloud.model.job_word import JobWord
from virtcloud.model.values import Name


@dataclass(frozen=True, slots=True)
class Question:
    """What a host wants to do for a job: ``joins`` and ``sites`` are those of the spec, ``network`` is its id."""

    key: str
    starter: str
    owner: str
    hosts: tuple[Name, ...]
    joins: str | None
    network: str | None
    sites: tuple[Name, ...]

    @property
    def text(self) -> str:
        """The question as it is kept: an answer is an answer to this one, and to no other."""
        return f"{self.owner} on {', '.join(self.hosts)} joins {self.network or self.joins} at {', '.join(self.sites)}"


def check_answer(question: Question, word: JobWord, network: str | None) -> None:
    """Raise Forbidden when the server's word does not cover a question.

    ``network`` is the id of the network that the job asked for, as that name stands now.
    """
    job = f"{question.starter} (job-starter) may not create the cluster of job {question.key}"
    if question.starter not in word.hosts:
        raise Forbidden(f"{job}: the batch system runs it on {_listed(word.hosts)}, not on {question.starter}")
    if question.owner != word.owner:
        raise Forbidden(f"{job} for {question.owner}: it is a job of {word.owner}")
    if others := sorted(set(question.hosts) - set(word.hosts)):
        raise Forbidden(f"{job} on {', '.join(others)}: the batch system runs it on {_listed(word.hosts)}")
    if question.joins is not None and (network is None or network != question.network):
        asked = f"network {word.network}" if word.network else "no network to join"
        raise Forbidden(f"{job} in network {question.joins}: the job asked for {asked}")
    if question.sites:
        raise Forbidden(f"{job} at sites without hosts ({', '.join(question.sites)}): a job is where its hosts are")


def _listed(hosts: tuple[Name, ...]) -> str:
    return ", ".join(sorted(hosts)) or "no host"
