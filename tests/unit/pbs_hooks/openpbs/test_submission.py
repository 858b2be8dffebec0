"""Tests of the server hook when a job is submitted or altered."""

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.batch_fakes.scripted_sbf import ScriptedSbf
from support.batch_fakes.server_hook import SHAPE, ServerHook, hook, logged

from virtcloud.testing.fakepbs import HookJob

NOBODY = "nobody"
NETWORK = "GET /v1/clusters?network=mine"
ROOT = {"key": "11.pbssrv", "spec": {"owner": "bob", "shares_with": ["carol"]}}
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def home() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="home-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def server_hook(server_hook: ServerHook) -> ServerHook:
    """The hook, with a longer time limit for reading a user's file. On a busy machine, a reading may take seconds."""
    server_hook.program = hook().replace("READ_TIMEOUT_S = 1.5", "READ_TIMEOUT_S = 4.5")
    assert server_hook.program != hook()
    return server_hook


def test_a_job_gets_exclusive_hosts_and_no_checkpoints(server_hook: ServerHook) -> None:
    found = server_hook.submit("image=debian12")
    assert found.accepted, found
    assert found.changed == {"Resource_List.place": "scatter:excl", "Checkpoint": "n"}


@pytest.mark.parametrize(
    ("line", "shape", "message"),
    [
        ("image=a:guests=x", {}, "vcluster: guests: expected a number from 1 to 64, got 'x' (character 9)"),
        ("image=a:name=Mine", {}, "vcluster: name must match [a-z][a-z0-9-]{0,31}, got 'Mine'"),
        ("image=a:publish=yes", {}, "vcluster: 'publish' is not supported here (character 9)"),
        (
            "image=a:services=dns",
            {},
            "vcluster: services: expected dhcp too, because guests find the servers by DHCP, got 'dns' (character 9)",
        ),
        ("image=a", {"select": ""}, "vcluster: use -l select=N:ncpus=…"),
        ("image=a", {"select": "", "nodes": "2:ppn=1"}, "vcluster: use -l select=N:ncpus=…"),
        (
            "image=a",
            {"place": "pack"},
            "vcluster: a cluster needs one exclusive host per chunk: use -l place=scatter:excl",
        ),
        ("image=a:mem=64gb", {"select": "2:mem=32gb"}, "vcluster: guest needs 64gb, the chunk has 32gb"),
        ("image=a", {"walltime": ""}, "vcluster: a walltime is required, at most 168:00:00"),
        ("image=a", {"walltime": "169:00:00"}, "vcluster: a walltime is required, at most 168:00:00"),
        (
            "image=a",
            {"vcluster_spec": "{}"},
            "vcluster: the resource vcluster_spec is reserved for the server; name the request file with spec=",
        ),
    ],
)
def test_an_invalid_request_is_rejected(
    server_hook: ServerHook, line: str, shape: dict[str, Any], message: str
) -> None:
    found = server_hook.submit(line, **shape)
    assert (found.accepted, found.message, found.changed) == (False, message, {})


def test_an_empty_request_is_refused(server_hook: ServerHook) -> None:
    """PBS removes an empty resource, so an accepted job would run without a cluster."""
    found = server_hook.run("queuejob", HookJob("", {}, {**SHAPE, "vcluster": ""}), requestor="alice")
    assert (found.accepted, found.message) == (
        False,
        "vcluster: expected a request such as image=debian12:guests=2, got nothing",
    )


def test_a_job_array_is_refused(server_hook: ServerHook) -> None:
    found = server_hook.submit("image=a", attributes={"array_indices_submitted": "1-2"})
    assert found.message == "vcluster: job arrays are not supported"


def test_an_invalid_user_name_is_rejected(server_hook: ServerHook) -> None:
    found = server_hook.submit("image=a", user="CAMPUS\\alice")
    assert found.message == r"vcluster: expected a user name that SBF accepts, got 'CAMPUS\\alice'"


def test_the_rejection_of_a_used_name_contains_the_job_id(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say("GET /v1/clusters?network=x", (200, [{"key": "12.server", "spec": {"owner": "bob"}}]))
    found = server_hook.submit("image=a:name=x")
    assert found.message == "vcluster: 'x' is already running as job 12.server"


def test_a_free_name_is_accepted(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(NETWORK, (200, []))
    assert server_hook.submit("image=a:name=mine").accepted


def test_a_missing_network_cannot_be_joined(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(NETWORK, (200, []))
    found = server_hook.submit("image=a:net=mine")
    assert found.message == "vcluster: network 'mine' is not running; start the network first, or omit net"


def test_the_network_decides_who_may_join(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    """The owner of the cluster that created the network may join, even if this cluster comes last in SBF's answer.

    SBF lists clusters by creation time. If SBF's clock was set back before another cluster joined the network, the
    other cluster comes first.
    """
    member = {"key": "12.pbssrv", "network": "11.pbssrv", "spec": {"owner": "carol"}}
    sbf.say(NETWORK, (200, [member, {**ROOT, "network": None}]))
    assert server_hook.submit("image=a:net=mine", user="bob").accepted


def test_a_shared_network_can_be_joined(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(NETWORK, (200, [ROOT]))
    assert server_hook.submit("image=a:net=mine", user="carol").accepted
    found = server_hook.submit("image=a:net=mine", user="alice")
    assert found.message == "vcluster: network 'mine' is not shared with alice"


def test_without_sbf_only_the_syntax_of_a_request_is_checked(server_hook: ServerHook) -> None:
    server_hook.sbf = "http://127.0.0.1:1"
    found = server_hook.submit("image=a:name=mine")
    assert found.accepted
    assert logged(found) == (
        "vcluster: network mine will be checked when the job starts: SBF does not answer: Connection refused"
    )


def test_invalid_settings_are_logged_for_administrators(server_hook: ServerHook) -> None:
    server_hook.settings["colour"] = "red"
    found = server_hook.submit("image=a")
    assert found.message == "vcluster: the hook's settings are invalid; inform the administrators of the batch system"
    assert "got 'colour'" in logged(found)


def test_an_unexpected_error_is_logged_with_its_traceback(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(NETWORK, (200, [{"no": "key"}]))
    found = server_hook.submit("image=a:name=mine")
    assert found.message == "vcluster: internal error of the hook; inform the administrators of the batch system"
    assert "in _check_free" in logged(found)
    assert "KeyError" in logged(found)


@as_root
def test_a_missing_or_unreadable_image_is_rejected(server_hook: ServerHook, home: Path) -> None:
    for name, mode in (("open", 0o644), ("closed", 0o600)):
        (home / name).mkdir()
        (home / name / "image.yaml").write_text("kind: lxc\n")
        (home / name / "image.yaml").chmod(mode)
    server_hook.settings["images"] = str(home)
    assert server_hook.submit("image=open", user=NOBODY).accepted
    missing = server_hook.submit("image=x", user=NOBODY)
    assert missing.message == "vcluster: image 'x' not found; see 'virtcloud image list'"
    closed = server_hook.submit("image=closed", user=NOBODY)
    assert closed.message == "vcluster: image 'closed' is not readable by nobody"


@as_root
@pytest.mark.parametrize(
    ("mode", "name", "message"),
    [
        (0o700, "open", "image 'open' is not readable by nobody"),
        (0o711, "x", "image 'x' not found; see 'virtcloud image list'"),
    ],
)
def test_the_image_folder_may_be_unreadable_or_unset(
    server_hook: ServerHook, home: Path, mode: int, name: str, message: str
) -> None:
    (home / "open").mkdir()
    (home / "open" / "image.yaml").write_text("kind: lxc\n")
    home.chmod(mode)
    server_hook.settings["images"] = str(home)
    assert server_hook.submit(f"image={name}", user=NOBODY).message == f"vcluster: {message}"


@as_root
def test_a_request_file_is_read_as_the_user_and_stored(server_hook: ServerHook, home: Path) -> None:
    path = home / "c.yaml"
    path.write_text("subnet: 10.1.0.0/24\nhosts:\n  - guests: [{image: a, mem: 1gb}]\n")
    path.chmod(0o600)
    os.chown(path, pwd.getpwnam(NOBODY).pw_uid, -1)
    found = server_hook.submit(f"spec={path}", user=NOBODY)
    assert found.accepted, found
    kept = '{"subnet":"10.1.0.0/24","hosts":[{"guests":[{"image":"a","mem":"1gb"}]}]}'
    assert found.changed["Resource_List.vcluster_spec"] == kept


@as_root
def test_a_file_of_another_user_is_not_read(server_hook: ServerHook, home: Path) -> None:
    (home / "c.yaml").write_text("secret: 1\n")
    (home / "c.yaml").chmod(0o600)
    found = server_hook.submit(f"spec={home}/c.yaml", user=NOBODY)
    assert found.message == f"vcluster: spec: expected a file of YAML or JSON, got {home}/c.yaml: Permission denied"


@as_root
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.write_bytes(b"#" * 70000), "more than 65536 bytes"),
        (lambda path: path.write_bytes(b"\xff"), "not UTF-8 text"),
        (lambda path: path.write_text("a: [1,"), "line 1, column 7: expected the node content, but found"),
        (lambda path: path.write_text("&a [*a]"), "line 1, column 1: found unconstructable recursive node"),
        (lambda path: path.write_text(r'a: "\UFFFFFFFF"'), "an escape code above 0010FFFF"),
        (lambda path: path.write_text("[" * 5000), "nested too deep"),
        (
            lambda path: path.write_text("a: 1\nb: {a: 1}\na: 2"),
            "line 3, column 1: expected each key once",
        ),
        (
            lambda path: path.write_text('{\n\t"vlan": "7",\n\t"hosts": [{"vlan": 1}],\n\t"vlan": "8"\n}'),
            "line 4, column 2: expected each key once, got 'vlan' again, first in line 2",
        ),
        (lambda path: path.write_text(bomb()), "more than 262144 bytes after expansion"),
        (lambda _path: None, "No such file or directory"),
    ],
    ids=[
        "device",
        "pipe",
        "long",
        "bytes",
        "cut off",
        "circle",
        "code",
        "deep",
        "twice",
        "twice in JSON",
        "bomb",
        "nothing",
    ],
)
def test_an_invalid_request_file_is_rejected(server_hook: ServerHook, home: Path, make: object, why: str) -> None:
    make(home / "c.yaml")
    found = server_hook.submit(f"spec={home}/c.yaml", user=NOBODY)
    assert str(found.message).startswith(f"vcluster: spec: expected a file of YAML or JSON, got {home}/c.yaml: {why}")


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    return "\n".join(lines)


def test_a_file_is_not_read_as_root(server_hook: ServerHook, home: Path) -> None:
    (home / "c.yaml").write_text("{}")
    found = server_hook.submit(f"spec={home}/c.yaml", user="root")
    assert found.message == (
        f"vcluster: spec: expected a file of YAML or JSON, got {home}/c.yaml: the hook does not read files as root: "
        "submit the job as another user"
    )


@as_root
def test_a_file_is_not_read_for_a_remote_caller(server_hook: ServerHook, home: Path) -> None:
    """On another host, anybody may have the name of a local user. Error messages would quote the local user's file."""
    (home / "c.yaml").write_text("password")
    job = HookJob("", {}, {**SHAPE, "vcluster": f"spec={home}/c.yaml"})
    found = server_hook.run("queuejob", job, requestor=NOBODY, requestor_host="elsewhere")
    assert found.message == (
        "vcluster: spec: expected a call from the server's host, or flatuid set on the server, "
        "got a call from elsewhere"
    )


@as_root
def test_a_file_is_not_read_for_another_caller(server_hook: ServerHook, home: Path) -> None:
    (home / "c.yaml").write_text("password")
    before = HookJob("12.pbssrv", {"euser": NOBODY, "job_state": "Q"}, {**SHAPE, "vcluster": "image=a"})
    change = HookJob("12.pbssrv", {}, {"vcluster": f"spec={home}/c.yaml"})
    found = server_hook.run("modifyjob", change, before, requestor="alice")
    assert found.message == "vcluster: spec: expected a call by nobody, the owner of the file, got a call by alice"


@as_root
def test_no_file_is_read_for_a_job_from_another_host(server_hook: ServerHook, home: Path) -> None:
    (home / "c.yaml").write_text("password")
    attributes = {"Job_Owner": "nobody@elsewhere"}
    found = server_hook.submit(f"spec={home}/c.yaml", user="alice", attributes=attributes)
    assert found.message == "vcluster: spec: expected a call by nobody, the owner of the file, got a call by alice"


def test_a_moved_job_keeps_the_content_of_its_file(server_hook: ServerHook) -> None:
    attributes = {"Job_Owner": "alice@elsewhere"}
    kept = '{"hosts":[{"guests":[{"image":"a"}]}]}'
    found = server_hook.submit("spec=/gone", user="root", attributes=attributes, vcluster_spec=kept)
    assert found.accepted, found
    assert "Resource_List.vcluster_spec" not in found.changed


def test_the_request_of_a_running_job_cannot_change(server_hook: ServerHook) -> None:
    found = server_hook.alter("image=a", state="R", vcluster="image=b")
    assert found.message == "vcluster: the request of a running job cannot be changed"


def test_a_running_job_cannot_get_a_request(server_hook: ServerHook) -> None:
    found = server_hook.alter("", state="R", vcluster="image=b")
    assert found.message == "vcluster: the request of a running job cannot be changed"


def test_the_hook_ignores_a_longer_walltime(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    """When the hook runs, PBS has not yet checked the caller's rights. Reconciliation extends the lease later."""
    assert server_hook.alter("image=a", state="R", walltime="2:00:00").accepted
    assert sbf.asked == []


def test_a_changed_request_is_checked_as_at_submission(server_hook: ServerHook) -> None:
    found = server_hook.alter("image=a", vcluster="image=a:mem=16gb")
    assert found.message == "vcluster: guest needs 16gb, the chunk has 8gb"


def test_changed_resources_of_a_job_are_checked(server_hook: ServerHook) -> None:
    found = server_hook.alter("image=a", place="pack")
    assert found.message == "vcluster: a cluster needs one exclusive host per chunk: use -l place=scatter:excl"
    assert server_hook.alter("image=a", walltime="0:30:00").accepted


def test_an_added_request_sets_the_place_of_the_job(server_hook: ServerHook) -> None:
    found = server_hook.alter("", former={"place": ""}, vcluster="image=a")
    assert found.changed["Resource_List.place"] == "scatter:excl"


def test_a_removed_file_leaves_no_content(server_hook: ServerHook) -> None:
    kept = '{"hosts":[{"guests":[{"image":"a"}]}]}'
    found = server_hook.alter("spec=/x", former={"vcluster_spec": kept}, vcluster="image=a")
    assert found.changed["Resource_List.vcluster_spec"] == ""
    assert server_hook.alter("spec=/x", former={"vcluster_spec": kept}, vcluster="").accepted


def test_a_queued_job_may_use_its_own_networks_name(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(NETWORK, (200, [{"key": "12.pbssrv", "spec": {"owner": "alice"}}]))
    assert server_hook.alter("image=a", vcluster="image=a:name=mine").accepted


@pytest.mark.parametrize("before", ["image=a:name=mine", "spec=/x"])
def test_a_queued_jobs_requested_name_is_not_checked_again(
    server_hook: ServerHook, sbf: ScriptedSbf, before: str
) -> None:
    """The job can wait for the end of the job that uses the name (``-W depend``)."""
    sbf.say(NETWORK, (200, [ROOT]))
    former = {"vcluster_spec": '{"name":"mine","hosts":[{"guests":[{"image":"a"}]}]}'} if "spec" in before else None
    assert server_hook.alter(before, former=former, walltime="0:30:00").accepted
    assert server_hook.alter(before, former=former, vcluster="image=b:name=mine").accepted
    found = server_hook.alter("image=a:name=other", vcluster="image=a:name=mine")
    assert found.message == "vcluster: 'mine' is already running as job 11.pbssrv"


def test_a_request_with_unreadable_content_can_be_replaced(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(NETWORK, (200, []))
    assert server_hook.alter("spec=/x", former={"vcluster_spec": "{"}, vcluster="image=a:name=mine").accepted


@pytest.mark.parametrize("content", ["{}", ""])
def test_users_cannot_set_or_remove_vcluster_spec(server_hook: ServerHook, content: str) -> None:
    kept = '{"hosts":[{"guests":[{"image":"a"}]}]}'
    found = server_hook.alter("spec=/x", former={"vcluster_spec": kept}, vcluster_spec=content)
    assert (
        found.message
        == "vcluster: the resource vcluster_spec is reserved for the server; name the request file with spec="
    )


def test_a_job_without_a_cluster_passes_untouched(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    for found in (server_hook.submit(""), server_hook.alter("", place="pack")):
        assert (found.accepted, found.changed, found.log) == (True, {}, ())
    assert sbf.asked == []


def test_jobs_without_a_request_need_no_resources_of_virtcloud(server_hook: ServerHook) -> None:
    found = server_hook.run("queuejob", HookJob("", {}, dict(SHAPE)), requestor="alice", custom_resources={})
    assert (found.accepted, found.changed) == (True, {}), found
