import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.hosts.container_images import write_container_image

from virtcloud.agent.guests.admission_rules import AdmissionRules
from virtcloud.agent.guests.images import read_image
from virtcloud.model.access import AdmissionRule, ClusterOrigin
from virtcloud.model.errors import Refused
from virtcloud.model.values import Name, UserName
from virtcloud.model.wanted import Segment

Make = Callable[..., Segment]
ALICE = ClusterOrigin(owner=UserName("alice"), batch=False)
JOB = ClusterOrigin(owner=UserName("alice"), batch=True)
BATCH_ONLY = AdmissionRules(AdmissionRule(users=()))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    write_container_image(folder)
    for path in (folder, folder / "busybox"):
        path.chmod(0o755)
    (folder / "busybox/image.yaml").chmod(0o644)
    return folder


def check(
    rules: AdmissionRules, origin: ClusterOrigin | None, images: Path, segment: Segment, cluster: str | None = None
) -> None:
    guest = segment.guests[0].model_copy(update={"image": Name("busybox"), "cluster": cluster})
    origins = {} if origin is None else {cluster or segment.id: origin}
    rules.check(segment.model_copy(update={"origins": origins}), guest, images)


@pytest.mark.parametrize("allowed", [False, True])
def test_guests_with_open_filters_need_the_hosts_permission(allowed: bool, images: Path, make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1",)).model_copy(update={"filters": "open"})
    if allowed:
        check(AdmissionRules(open_filters=True), ALICE, images, segment)
        return
    with pytest.raises(Refused, match="runs no guests of clusters with open filters"):
        check(AdmissionRules(), ALICE, images, segment)


@pytest.mark.parametrize(
    ("rules", "origin", "refused"),
    [
        (AdmissionRules(), ALICE, None),
        (BATCH_ONLY, JOB, None),
        (BATCH_ONLY, ALICE, "guest g1: this host is for batch jobs, not for alice"),
        (
            AdmissionRules(AdmissionRule(users=(UserName("bob"),))),
            ALICE,
            "this host is for batch jobs and users bob",
        ),
        (AdmissionRules(AdmissionRule(users=(UserName("alice"),))), ALICE, None),
        (
            AdmissionRules(AdmissionRule(batch=False)),
            JOB,
            "this host is for all users, not for a batch job of alice",
        ),
        (
            AdmissionRules(images=(Name("debian"),)),
            ALICE,
            "alice may not choose image busybox; users may choose: debian",
        ),
        (AdmissionRules(images=(Name("debian"),)), JOB, None),
        (BATCH_ONLY, None, "expected the owner from SBF, got none"),
        (AdmissionRules(), None, None),
    ],
)
def test_a_host_runs_only_guests_that_its_settings_admit(
    rules: AdmissionRules, origin: ClusterOrigin | None, refused: str | None, images: Path, make_segment: Make
) -> None:
    segment = make_segment("a", 100, ("g1",))
    if refused is None:
        check(rules, origin, images, segment)
        return
    with pytest.raises(Refused, match=refused):
        check(rules, origin, images, segment)


def test_a_members_guest_is_checked_by_the_members_origin(images: Path, make_segment: Make) -> None:
    with pytest.raises(Refused, match="this host is for batch jobs"):
        check(BATCH_ONLY, ALICE, images, make_segment("a", 100, ("g1",)), cluster="m")


@pytest.mark.parametrize("origin", [ALICE, JOB])
def test_an_image_that_the_owner_cannot_read_starts_no_guest(
    origin: ClusterOrigin, images: Path, make_segment: Make
) -> None:
    (images / "busybox/image.yaml").chmod(0o600)
    with pytest.raises(Refused, match="guest g1: image busybox is not readable by alice"):
        check(AdmissionRules(), origin, images, make_segment("a", 100, ("g1",)))


def test_an_image_in_an_inaccessible_folder_is_refused(images: Path, make_segment: Make) -> None:
    (images / "busybox").chmod(0o700)
    with pytest.raises(Refused, match="is not readable by alice"):
        check(AdmissionRules(), ALICE, images, make_segment("a", 100, ("g1",)))


def test_an_images_owner_may_use_it(images: Path, make_segment: Make) -> None:
    (images / "busybox/image.yaml").chmod(0o600)
    root = ClusterOrigin(owner=UserName("root"), batch=False)
    check(AdmissionRules(), root, images, make_segment("a", 100, ("g1",)))


def test_a_world_writable_image_is_refused(images: Path) -> None:
    (images / "busybox/image.yaml").chmod(0o666)
    with pytest.raises(Refused, match=r"untrusted users can write to .*image\.yaml"):
        read_image(images, "busybox")


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can change the owner of a file")
def test_an_image_in_a_users_folder_is_refused(images: Path) -> None:
    os.chown(images / "busybox", 4711, 4711)
    with pytest.raises(Refused, match=r"untrusted users can write to .*busybox"):
        read_image(images, "busybox")
