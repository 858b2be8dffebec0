"""A job is about to run: its network is asked for, and made while the job's hosts start; or the job goes back."""

import time
from typing import Any, Dict, NamedTuple, Optional

from virtcloud.jobs.cluster import Run, cluster_of, network_of
from virtcloud.jobs.errors import RequestError
from virtcloud.jobs.pbs import admit
from virtcloud.jobs.request import Request
from virtcloud.pbs.hooks import quota
from virtcloud.pbs.hooks.asked import element, elements, requested, shape
from virtcloud.pbs.hooks.event import Event
from virtcloud.pbs.hooks.job import ASKED, KEPT, attempt, hosts_of, in_array, key, resource
from virtcloud.pbs.hooks.obit import end_run
from virtcloud.pbs.hooks.reason import TOLD, untold
from virtcloud.pbs.hooks.service import Answer, AwayError
from virtcloud.pbs.hooks.submission import taken
from virtcloud.pbs.hooks.verdict import AGAIN, SHORT_S, Asked, Refusal, away, over, refusal


class Given(NamedTuple):
    """What the job got from PBS, and what it asked for."""

    request: Request
    run: Run
    attempt: int


def runjob(event: Event) -> None:
    """Ask for the job's cluster; a job that cannot have one now is refused, with the reason as its comment.

    One of an array goes to its host, which deletes it: the scheduler offers one that is refused here again at once,
    for ever, and starts no other job meanwhile (measured).
    """
    line = resource(event.job, ASKED)
    if line is None or in_array(event.job):
        return
    try:
        refused = _failed_before(event) or _start(event, _given(event, line))
    except RequestError as error:
        refused = Refusal(str(error), hold="u")
    except AwayError as error:
        refused = away(str(error), event.settings.retry_after)
    if refused is not None:
        _refuse(event, refused)


def _failed_before(event: Event) -> Optional[Refusal]:
    """Tell why the run before did not start: its host left that with the job, which PBS offers again at once.

    Its cluster is ended here, too: where the first host refuses at once PBS has no obituary, and the agent may be away.
    """
    number = attempt(event.job)
    text = untold(event.job.Variable_List or {}, number)
    if text is None:
        return None
    event.job.Variable_List[TOLD] = str(number)
    end_run(event, number)
    return Refusal(text, event.settings.retry_after)


def _given(event: Event, line: str) -> Given:
    job, settings = event.job, event.settings
    request = _admitted(event, line)
    hosts = elements(str(job.exec_vnode), settings.hosts)
    seconds = event.walltime(str(resource(job, "walltime")))
    run = Run(key(job), str(job.euser), hosts, seconds, int(settings.setup))
    return Given(request, run, attempt(job) + 1)


def _admitted(event: Event, line: str) -> Request:
    """Look again: a queue's default, or a hook that was switched off, lets in what nobody looked at. RequestError."""
    kept = resource(event.job, KEPT)
    request = requested(line, kept)
    if request.spec is not None and kept is None:
        raise RequestError("spec: %s was not read when the job came in; submit it again" % request.spec)
    admit(request, shape(event.job), event.settings.longest_walltime)
    return request


def _start(event: Event, given: Given) -> Optional[Refusal]:
    """Ask for the cluster; raises AwayError, RequestError."""
    too_much = quota.told(given.run)
    if too_much is not None:
        return Refusal(too_much)
    answer = _put(event, given)
    if answer.slug == "name-taken":
        return _name_taken(event, given, answer)
    if over(answer):
        _let_fail(event, given, answer)
    vnodes = hosts_of(str(event.job.exec_vnode))
    names = {element(vnode, event.settings.hosts): vnode for vnode in vnodes}
    refused = refusal(answer, Asked(given.run.owner, given.request.net, names), event.settings.retry_after)
    if refused is not None and answer.slug == "quota-exceeded":
        quota.tell(given.run, refused.message)
    return refused


def _put(event: Event, given: Given) -> Answer:
    """Ask for it; two jobs that join a network at once may choose the same addresses: one of them chooses again."""
    request = given.request
    if request.net is None:
        return event.sbf.put(given.run.key, _spec(event, given, None), given.attempt)
    answer = _join(event, given)
    return _join(event, given) if answer.slug == "guest-taken" else answer


def _join(event: Event, given: Given) -> Answer:
    found = event.sbf.network(str(given.request.net))
    if not found.well:
        return found
    joined = network_of(found.document, given.run.key)
    if joined is None:
        return Answer(404, {"type": "urn:virtcloud:problem:no-such-network", "detail": ""})
    return event.sbf.put(given.run.key, _spec(event, given, joined), given.attempt)


def _spec(event: Event, given: Given, joined: Any) -> Dict[str, Any]:
    """Give the spec; SBF gives up some time before the hosts do, who then can say its reason."""
    spec = cluster_of(given.request, given.run, joined)
    return dict(spec, deadline_s=event.settings.setup * 3 // 4)


def _name_taken(event: Event, given: Given, answer: Answer) -> Refusal:
    name = str(given.request.name)
    found = event.sbf.network(name)
    if not found.well or not found.document:
        return Refusal("vcluster: %s%s" % (answer.detail, AGAIN), SHORT_S)
    text = "vcluster: %s%s" % (taken(name, found.document[0]["key"]), AGAIN)
    return Refusal(text, event.settings.retry_after)


def _let_fail(event: Event, given: Given, answer: Answer) -> None:
    """Let the job go to its hosts, which find that its attempt is over and send it back: the next has a new number."""
    if not answer.well:
        event.sbf.end(given.run.key, given.attempt, given.run.owner)
    event.alert(
        "job %s: attempt %d is over (%s): its hosts will send it back"
        % (given.run.key, given.attempt, answer.detail if not answer.well else answer.document.get("state"))
    )


def _refuse(event: Event, refused: Refusal) -> None:
    job = event.job
    if refused.wait:
        job.Execution_Time = int(time.time()) + refused.wait
    if refused.hold:
        job.Hold_Types = event.pbs.hold_types(refused.hold)
    if refused.alert:
        event.alert("job %s: %s" % (key(job), refused.message))
    event.reject(refused.message)
