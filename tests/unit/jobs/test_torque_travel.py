"""How a request travels with a Torque job: the submit filter puts it where Torque shows it to the job's hosts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtcloud.jobs.request import parse
from virtcloud.jobs.torque import resources
from virtcloud.jobs.torque_travel import carrying, request_of, submission_of


def test_a_request_with_colons_and_brackets_arrives_whole() -> None:
    request = "image=a:guests=2:subnet=[10.0.0.0/24+fd00::/64]"
    found = resources(f"neednodes=2:ppn=1,nodes=2:ppn=1,other=vcluster={request},walltime=01:00:00")
    assert request_of(found) == request
    assert parse(request).subnet == ("10.0.0.0/24", "fd00::/64")


def test_a_torque_that_knows_the_resource_itself_needs_no_carrier() -> None:
    assert request_of({"vcluster": "image=a", "other": "vcluster=image=b"}) == "image=a"


@pytest.mark.parametrize("text", ["", "nodes=1", "other=fast", "walltime=1"])
def test_a_job_without_a_request_asks_for_nothing(text: str) -> None:
    assert request_of(resources(text)) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["-l", "vcluster=image=a"],
        ["-lvcluster=image=a", "job.sh"],
        ["-N", "mine", "-Il", "nodes=2,vcluster=image=a"],
        ["-l", "vcluster=image=b", "-l", "vcluster=image=a"],
        ["-l", "'vcluster=image=a'"],
    ],
)
def test_a_request_is_found_among_the_arguments_of_qsub(arguments: list[str]) -> None:
    assert submission_of(arguments, "").resources["vcluster"] == "image=a"


def test_a_request_is_found_among_the_directives() -> None:
    script = "#!/bin/sh\n# mine\n#PBS -N x -l nodes=2\n\n#PBS -l vcluster=image=a\ntrue\n#PBS -l vcluster=image=late\n"
    assert submission_of([], script).resources == {"nodes": "2", "vcluster": "image=a"}


@pytest.mark.parametrize(
    "line",
    [
        "  #PBS -l vcluster=image=a",
        "#PBS -l nodes=2 \\\n -l vcluster=image=a",
        "   # mine\n:\n#PBS -l vcluster=image=a\r",
    ],
)
def test_directives_are_what_qsub_takes_for_some(line: str) -> None:
    assert submission_of([], f"#!/bin/sh\n{line}\ntrue\n").resources["vcluster"] == "image=a"


def test_the_command_line_goes_before_the_script() -> None:
    script = "#PBS -l vcluster=image=a,walltime=1:0:0\n"
    found = submission_of(["-l", "vcluster=image=b"], script).resources
    assert found == {"vcluster": "image=b", "walltime": "1:0:0"}


def test_an_array_is_seen_on_the_command_line_and_in_the_script() -> None:
    assert submission_of(["-t", "1-3"], "").array
    assert submission_of([], "#PBS -t 1-3\n").array
    assert not submission_of(["-l", "nodes=2", "-N", "t"], "#PBS -l nodes=2\n").array


def test_the_request_is_written_behind_the_first_line() -> None:
    script = "#!/bin/sh\n#PBS -l vcluster=image=a\nhostname\n"
    assert carrying(script, "image=a") == (
        "#!/bin/sh\n#PBS -l other=vcluster=image=a\n#PBS -l vcluster=image=a\nhostname\n"
    )
    assert carrying("hostname", "image=a") == "#PBS -l other=vcluster=image=a\nhostname"
    assert carrying("#!/bin/sh", "image=a") == "#!/bin/sh\n#PBS -l other=vcluster=image=a\n"


def test_an_older_request_in_the_script_is_replaced() -> None:
    once = carrying("#!/bin/sh\nhostname\n", "image=a")
    assert carrying(once, "image=b") == "#!/bin/sh\n#PBS -l other=vcluster=image=b\nhostname\n"


@given(script=st.text(alphabet="#!/PBS -l\n=ovx", max_size=60))
def test_filtering_twice_is_filtering_once(script: str) -> None:
    once = carrying(script, "image=a")
    assert carrying(once, "image=a") == once
    assert submission_of([], once).resources["other"] == "vcluster=image=a"
