from io import StringIO
from itertools import count

import pytest
from rich.console import Console
from support.fake_machine.clusters import view

from virtcloud.cli.progress import ProgressDisplay, ProgressLines, format_progress
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.views import ClusterView

SPEC = ClusterSpec.model_validate(
    {"owner": "eva", "guests": [{"name": name, "host": "brno-h1", "image": "busybox"} for name in ("g1", "g2")]}
)


def display_states(*states: ClusterState, terminal: bool) -> str:
    seconds, printed = count(), StringIO()
    console = Console(
        file=printed, force_terminal=terminal, width=100, markup=False, highlight=False, color_system=None
    )
    with ProgressDisplay(lambda: float(next(seconds)), console) as progress:
        for number, state in enumerate(states):
            progress(view("demo", SPEC, state, number))
    return printed.getvalue()


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (ClusterState.CONFIGURING, ["waiting for VLAN 100 on its ports", "waiting for VLAN 100 and g1, g2"]),
        (ClusterState.ACTIVE, ["has VLAN 100 on its ports", "has VLAN 100 and g1, g2"]),
        (
            ClusterState.DRAINING,
            ["waiting for the removal of VLAN 100 on its ports", "waiting for the removal of VLAN 100 and g1, g2"],
        ),
        (ClusterState.RELEASED, ["clean", "clean"]),
    ],
)
def test_each_element_has_its_progress(state: ClusterState, expected: list[str]) -> None:
    cluster = view("demo", SPEC, state)
    assert [format_progress(placement, cluster) for placement in cluster.placements] == expected


def test_an_elements_error_is_printed_after_its_progress() -> None:
    cluster = view("demo", SPEC, ClusterState.CONFIGURING)
    failing = cluster.placements[0].model_copy(update={"trouble": "it does not answer"})
    assert format_progress(failing, cluster) == "waiting for VLAN 100 on its ports; trouble: it does not answer"


def test_an_error_with_several_lines_is_printed_on_one_line() -> None:
    cluster = view("demo", SPEC, ClusterState.CONFIGURING)
    failing = cluster.placements[0].model_copy(update={"trouble": "libvirt:\nno kernel\n"})
    assert format_progress(failing, cluster).endswith("; trouble: libvirt: no kernel")
    printed = StringIO()
    ProgressLines[ClusterView](lambda _view: [("g1", "no\nkernel")], lambda: 0.0, Console(file=printed))(cluster)
    assert printed.getvalue().endswith("g1: no kernel\n")


def test_in_a_pipe_only_changes_are_printed() -> None:
    lines = display_states(
        ClusterState.CONFIGURING, ClusterState.CONFIGURING, ClusterState.ACTIVE, terminal=False
    ).splitlines()
    assert [line.split("s  ")[1].split(":")[0] for line in lines] == ["demo", "brno-sw", "brno-h1"] * 2


def test_on_a_terminal_every_element_has_a_line_with_seconds() -> None:
    screen = display_states(ClusterState.CONFIGURING, ClusterState.ACTIVE, terminal=True)
    assert "…  brno-sw  waiting for VLAN 100 on its ports" in screen
    assert "✓  brno-h1  has VLAN 100 and g1, g2" in screen
