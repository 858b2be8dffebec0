"""Tests of the conditions for a Torque job with a cluster, and of the copy of the request in the resource ``other``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtcloud.jobs.host_names import parse_nodefile
from virtcloud.jobs.openpbs_request import Chunk
from virtcloud.jobs.request import parse_request
from virtcloud.jobs.request_values import RequestError
from virtcloud.jobs.torque_request import (
    add_request_directive,
    admit_torque_job,
    find_request,
    parse_nodes,
    parse_resources,
    parse_submission,
)


def refusal(line: str, wanted: str, array: bool = False) -> str:
    with pytest.raises(RequestError) as caught:
        admit_torque_job(parse_request(line), parse_resources(wanted), 7 * 86400, array)
    return str(caught.value)


def is_admitted(line: str, wanted: str, longest_s: int | None) -> bool:
    try:
        admit_torque_job(parse_request(line), parse_resources(wanted), longest_s)
    except RequestError:
        return False
    return True


def test_a_resource_list_may_contain_a_request() -> None:
    text = "neednodes=2:ppn=4,nodes=2:ppn=4,vcluster=image=a:subnet=[fd00::/64],walltime=04:00:00"
    assert dict(parse_resources(text)) == {
        "neednodes": "2:ppn=4",
        "nodes": "2:ppn=4",
        "vcluster": "image=a:subnet=[fd00::/64]",
        "walltime": "04:00:00",
    }


def test_a_job_with_nodes_and_walltime_is_admitted() -> None:
    assert is_admitted("image=a:ncpus=4", "nodes=2:ppn=4,walltime=1:00:00", 3600)


@pytest.mark.parametrize(
    ("line", "wanted", "message"),
    [
        ("image=a", "walltime=1:00", "use -l nodes=N:ppn=\u2026"),
        ("image=a", "nodes=2:ppn=x,walltime=1:00", "use -l nodes=N:ppn=\u2026, got nodes=2:ppn=x"),
        ("image=a", "nodes=2:ppn=\u00b2,walltime=1:00", "use -l nodes=N:ppn=\u2026, got nodes=2:ppn=\u00b2"),
        ("image=a", "nodes=00,walltime=1:00", "use -l nodes=N:ppn=\u2026, got nodes=00"),
        ("image=a:ncpus=8", "nodes=2:ppn=4,walltime=1:00", "guest needs ncpus=8, the chunk has ncpus=4"),
        ("image=a", "nodes=2:ppn=4", "a walltime is required, at most 168:00:00"),
    ],
)
def test_a_job_that_cannot_have_a_cluster_is_rejected(line: str, wanted: str, message: str) -> None:
    assert refusal(line, wanted) == "vcluster: " + message


def test_a_job_array_is_refused() -> None:
    assert refusal("image=a", "nodes=1,walltime=1:00", array=True) == "vcluster: job arrays are not supported"


def test_nodes_are_read_by_number_and_by_name() -> None:
    assert parse_nodes("3:ppn=4+n7:big") == (Chunk(3, {"ncpus": "4"}), Chunk(1, {}))


def test_each_host_of_a_nodefile_counts_once() -> None:
    assert parse_nodefile("n2\nn2\nn1\nn2\n\nn3\n") == ("n2", "n1", "n3")


def test_a_comma_in_brackets_does_not_split() -> None:
    assert dict(parse_resources("hostlist=n[1,2],mem=1gb")) == {"hostlist": "n[1,2]", "mem": "1gb"}


def test_a_request_file_is_rejected() -> None:
    assert refusal("spec=/home/alice/c.yaml", "nodes=1,walltime=1:00") == (
        "vcluster: spec: expected the request in -l vcluster=REQUEST, got a file: Torque passes no file to hosts"
    )


def test_a_queue_may_still_set_the_walltime() -> None:
    assert is_admitted("image=a", "nodes=1", None)


def test_colons_and_brackets_of_a_request_are_preserved() -> None:
    request = "image=a:guests=2:subnet=[10.0.0.0/24+fd00::/64]"
    resources = parse_resources(f"neednodes=2:ppn=1,nodes=2:ppn=1,other=vcluster={request},walltime=01:00:00")
    assert find_request(resources) == request
    assert parse_request(request).subnet == ("10.0.0.0/24", "fd00::/64")


def test_the_resource_vcluster_overrides_the_resource_other() -> None:
    assert find_request({"vcluster": "image=a", "other": "vcluster=image=b"}) == "image=a"


@pytest.mark.parametrize("text", ["", "nodes=1", "other=fast", "walltime=1"])
def test_a_job_without_a_request_has_none(text: str) -> None:
    assert find_request(parse_resources(text)) is None


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
    assert parse_submission(arguments, "").resources["vcluster"] == "image=a"


def test_a_request_is_found_among_the_directives() -> None:
    script = "#!/bin/sh\n# mine\n#PBS -N x -l nodes=2\n\n#PBS -l vcluster=image=a\ntrue\n#PBS -l vcluster=image=late\n"
    assert parse_submission([], script).resources == {"nodes": "2", "vcluster": "image=a"}


@pytest.mark.parametrize(
    "line",
    [
        "  #PBS -l vcluster=image=a",
        "#PBS -l nodes=2 \\\n -l vcluster=image=a",
        "   # mine\n:\n#PBS -l vcluster=image=a\r",
    ],
)
def test_directives_end_at_the_first_command(line: str) -> None:
    assert parse_submission([], f"#!/bin/sh\n{line}\ntrue\n").resources["vcluster"] == "image=a"


@pytest.mark.parametrize(
    ("arguments", "directive"),
    [
        (["-F", "-t 8 -l vcluster=image=b -C x"], ""),
        (["-F", "-t", "8"], ""),  # as the filter gets the option -F "-t 8"
        (["-F-t 8"], ""),
        ([], '-F "-t 8"'),
        ([], """-N 'a -t "8' -F "of -t 8 -l vcluster=image=b" """),
    ],
)
def test_the_value_of_an_option_is_no_option(arguments: list[str], directive: str) -> None:
    script = f"#PBS -l vcluster=image=a\n#PBS {directive}\n"
    assert parse_submission(arguments, script) == ({"vcluster": "image=a"}, False, False)


@pytest.mark.parametrize("option", ["-A", "-q", "-v", "-M"])
def test_a_request_after_an_empty_value_is_found(option: str) -> None:
    """The program qsub omits the empty value of ``-A ""``."""
    assert parse_submission([option, "-l", "vcluster=image=a"], "") == ({"vcluster": "image=a"}, False, False)


def test_an_unmatched_quotation_mark_does_not_hide_options() -> None:
    submission = parse_submission([], "#PBS -N alice's -l vcluster=image=a -t 1-4\n")
    assert (submission.resources, submission.array) == ({"vcluster": "image=a"}, True)


def test_the_command_line_overrides_the_script() -> None:
    script = "#PBS -l vcluster=image=a,walltime=1:0:0\n"
    resources = parse_submission(["-l", "vcluster=image=b"], script).resources
    assert resources == {"vcluster": "image=b", "walltime": "1:0:0"}


def test_a_job_array_is_detected_in_arguments_and_scripts() -> None:
    assert parse_submission(["-t", "1-3"], "").array
    assert parse_submission([], "#PBS -t 1-3\n").array
    assert not parse_submission(["-l", "nodes=2", "-N", "t"], "#PBS -l nodes=2\n").array


def test_the_request_is_written_after_the_first_line() -> None:
    script = "#!/bin/sh\n#PBS -l vcluster=image=a\nhostname\n"
    assert add_request_directive(script, "image=a") == (
        "#!/bin/sh\n#PBS -l other=vcluster=image=a\n#PBS -l vcluster=image=a\nhostname\n"
    )
    assert add_request_directive("hostname", "image=a") == "#PBS -l other=vcluster=image=a\nhostname"
    assert add_request_directive("#!/bin/sh", "image=a") == "#!/bin/sh\n#PBS -l other=vcluster=image=a\n"


def test_an_older_request_in_the_script_is_replaced() -> None:
    once = add_request_directive("#!/bin/sh\nhostname\n", "image=a")
    assert add_request_directive(once, "image=b") == "#!/bin/sh\n#PBS -l other=vcluster=image=b\nhostname\n"


@given(script=st.text(alphabet="#!/PBS -l\n=ovx", max_size=60))
def test_adding_a_request_directive_is_idempotent(script: str) -> None:
    once = add_request_directive(script, "image=a")
    assert add_request_directive(once, "image=a") == once
    assert parse_submission([], once).resources["other"] == "vcluster=image=a"
