"""What a Torque job must be like to have a cluster, and how Torque's words are read."""

import pytest

from virtcloud.jobs.errors import RequestError
from virtcloud.jobs.pbs import Chunk
from virtcloud.jobs.request import parse
from virtcloud.jobs.torque import admit, chunks, hosts_of, resources


def refusal(line: str, wanted: str, array: bool = False) -> str:
    with pytest.raises(RequestError) as caught:
        admit(parse(line), resources(wanted), 7 * 86400, array)
    return str(caught.value)


def test_a_list_of_resources_is_read_with_the_request_in_it() -> None:
    text = "neednodes=2:ppn=4,nodes=2:ppn=4,vcluster=image=a:subnet=[fd00::/64],walltime=04:00:00"
    assert dict(resources(text)) == {
        "neednodes": "2:ppn=4",
        "nodes": "2:ppn=4",
        "vcluster": "image=a:subnet=[fd00::/64]",
        "walltime": "04:00:00",
    }


def test_a_job_with_nodes_and_walltime_is_admitted() -> None:
    admit(parse("image=a:ncpus=4"), resources("nodes=2:ppn=4,walltime=1:00:00"), 3600)


@pytest.mark.parametrize(
    ("line", "wanted", "message"),
    [
        ("image=a", "walltime=1:00", "use -l nodes=N:ppn=\u2026"),
        ("image=a", "nodes=2:ppn=x,walltime=1:00", "use -l nodes=N:ppn=\u2026, got nodes=2:ppn=x"),
        ("image=a:ncpus=8", "nodes=2:ppn=4,walltime=1:00", "guest wants ncpus=8, its chunk has ncpus=4"),
        ("image=a", "nodes=2:ppn=4", "a walltime is required, at most 168:00:00"),
    ],
)
def test_a_job_that_cannot_have_a_cluster_is_told_why(line: str, wanted: str, message: str) -> None:
    assert refusal(line, wanted) == "vcluster: " + message


def test_a_job_array_is_refused() -> None:
    assert refusal("image=a", "nodes=1,walltime=1:00", array=True) == "vcluster: job arrays are not supported"


def test_nodes_are_read_by_number_and_by_name() -> None:
    assert chunks("3:ppn=4+n7:big") == (Chunk(3, {"ncpus": "4"}), Chunk(1, {}))


def test_each_host_of_a_node_file_counts_once_the_first_first() -> None:
    assert hosts_of("n2\nn2\nn1\nn2\n\nn3\n") == ("n2", "n1", "n3")


def test_a_comma_in_brackets_parts_nothing() -> None:
    assert dict(resources("hostlist=n[1,2],mem=1gb")) == {"hostlist": "n[1,2]", "mem": "1gb"}


def test_a_file_of_a_request_is_refused_since_it_does_not_travel() -> None:
    assert refusal("spec=/home/alice/c.yaml", "nodes=1,walltime=1:00") == (
        "vcluster: spec: expected the request in one line, got a file: it does not travel with a Torque job"
    )


def test_a_walltime_that_a_queue_may_still_give_is_not_asked_for_yet() -> None:
    admit(parse("image=a"), resources("nodes=1"), None)
