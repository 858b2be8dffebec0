"""Tests of ``virtcloud doctor``. Its probes run on the lab's kernel, which has all features, and on the test host's."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from virtcloud.cli import main
from virtcloud.lab import Lab, lab_kernel, prerequisites
from virtcloud.lab.lab_kernel import FEATURES, KernelFeature
from virtcloud.lab.node_services import AGENT_FILE

pytestmark = pytest.mark.lab

KERNEL_WORDS = ("Operation not supported", "Unknown device type", "Specified qdisc kind is unknown")


@pytest.mark.parametrize("feature", FEATURES, ids=lambda one: one.name)
def test_a_probe_succeeds_on_a_kernel_that_has_the_feature(lab: Lab, feature: KernelFeature) -> None:
    done = lab.run("user", ["unshare", "--net", "sh", "-c", " && ".join(feature.commands)])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("feature", FEATURES, ids=lambda one: one.name)
def test_a_failing_probe_lacks_the_kernel_feature(feature: KernelFeature) -> None:
    """A probe fails only because the kernel lacks a feature, not because ``ip`` or ``tc`` rejects the syntax."""
    command = ["unshare", "--net", "sh", "-c", " && ".join(feature.commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the probe itself
    assert done.returncode == 0 or any(words in done.stderr for words in KERNEL_WORDS), done.stderr
    assert lab_kernel.has_feature(feature) is (done.returncode == 0)


def test_doctor_and_the_lab_choose_the_same_kernel(lab: Lab) -> None:
    assert prerequisites.diagnose().kernel == lab.status()["kernel"]


def test_in_a_pipe_each_finding_is_a_line() -> None:
    lines = CliRunner().invoke(main, ["doctor"]).output.splitlines()
    assert len(lines) == 1 + len(prerequisites.diagnose().findings) + 1


def test_the_exit_code_shows_whether_a_lab_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(main, ["doctor", "--json"])
    assert (done.exit_code, json.loads(done.output)["healthy"]) == (0, True)
    monkeypatch.setattr(lab_kernel, "has_feature", lambda _: False)
    monkeypatch.setattr(lab_kernel, "UML", "/nowhere/linux.uml")
    done = CliRunner().invoke(main, ["doctor"])
    assert (done.exit_code, "no lab can run here" in done.output) == (1, True)


def test_a_host_of_the_lab_passes_the_host_check(lab: Lab) -> None:
    argv = (sys.executable, "-m", "virtcloud.cli", "doctor", "--host", "--config", AGENT_FILE, "--json")
    sound = lab.run("praha-h2", argv, timeout_s=120)
    assert (sound.returncode, [one for one in json.loads(sound.stdout)["checks"] if not one["ok"]]) == (0, [])
    wrong = lab.run("praha-h2", ("env", "PATH=/nowhere", *argv[:-2], "/nowhere.toml", "--json"), timeout_s=120)
    assert (wrong.returncode, json.loads(wrong.stdout)["healthy"]) == (1, False)
