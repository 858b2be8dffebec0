"""The submit filter of qsub: rejects invalid requests, and writes a valid request into the job's script.

Torque may drop the request from the list of resources; the first host then reads it from the job's script.
"""

import sys
from typing import Callable, Mapping, Optional, Sequence

from pbs_hooks.torque.scripts.script_settings import ScriptSettings, read_script_settings
from virtcloud.jobs.request import parse_request
from virtcloud.jobs.request_values import RequestError
from virtcloud.jobs.torque_request import (
    CARRIER_RESOURCE,
    DIRECTIVE,
    REQUEST_MARK,
    QsubSubmission,
    add_request_directive,
    admit_torque_job,
    find_request,
    parse_submission,
)

PREFIX_VARIABLE = "PBS_DPREFIX"
MAX_REQUEST_CHARACTERS = 1024
"""Maximum length of a request. Torque passes only the first 2 kB of a job's resources to a prologue."""


def run_submit_filter(arguments: Sequence[str], environment: Mapping[str, str], settings_file: str) -> None:
    """Copy the script from stdin to stdout, and add the request.

    Raise RequestError if the request is invalid, and SettingsError if the settings are needed and invalid.
    """
    script = sys.stdin.buffer.read().decode("latin-1")
    filtered = filter_submission(arguments, script, lambda: read_script_settings(settings_file), environment)
    sys.stdout.buffer.write(filtered.encode("latin-1"))
    sys.stdout.buffer.flush()


def filter_submission(
    arguments: Sequence[str],
    script: str,
    read_settings: Callable[[], ScriptSettings],
    environment: Mapping[str, str],
) -> str:
    """Return the script with the submission's request in a directive.

    Without a request, return the script unchanged and do not call ``read_settings``. Raise RequestError if the request
    is invalid.
    """
    submission = parse_submission(arguments, script)
    other = submission.prefixed or environment.get(PREFIX_VARIABLE, DIRECTIVE) != DIRECTIVE
    if other and any(REQUEST_MARK in text for text in (script, *arguments)):
        raise RequestError(
            "omit -C and %s: the filter writes the request to a line that begins with #PBS" % PREFIX_VARIABLE
        )
    request = find_request(submission.resources)
    if request is None:
        return script
    _check_request(request, submission, read_settings())
    return add_request_directive(script, request)


def _check_request(request: str, submission: QsubSubmission, settings: ScriptSettings) -> None:
    resources = submission.resources
    admit_torque_job(
        parse_request(request), resources, _walltime_limit(resources.get("walltime"), settings), submission.array
    )
    carrier = resources.get(CARRIER_RESOURCE)
    if carrier is not None and not carrier.startswith(REQUEST_MARK):
        raise RequestError(
            "%s: expected no value, because this resource carries the request, got %r" % (CARRIER_RESOURCE, carrier)
        )
    if request.split() != [request]:
        text = "expected a request without spaces, because Torque cuts off a request at the first space, got %r"
        raise RequestError(text % request)
    if len(request) > MAX_REQUEST_CHARACTERS:
        text = "expected at most %d characters, the limit of a Torque job, got %d"
        raise RequestError(text % (MAX_REQUEST_CHARACTERS, len(request)))


def _walltime_limit(walltime: Optional[str], settings: ScriptSettings) -> Optional[int]:
    """Return the longest permitted walltime in seconds.

    Return None for a job without a walltime: its queue may set a walltime later.
    """
    return None if walltime is None else settings.longest_walltime
