"""Says what a machine has and lacks for a lab, and in which kernel one would run: its own, User-mode Linux, or none."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from virtcloud.lab import guest_kernel, kernel, openvswitch, preflight


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``needed`` says whether a lab cannot do without; ``remedy`` how to get it."""

    group: str
    name: str
    present: bool
    needed: bool = True
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, and the kernel a lab would run in: ``direct``, ``uml`` or none."""

    findings: tuple[Finding, ...]
    kernel: str | None

    @property
    def healthy(self) -> bool:
        """Whether a lab can run here."""
        return self.kernel is not None and all(one.present for one in self.findings if one.needed)


def examine() -> Diagnosis:
    """Look at this machine; features of the kernel are tried for real, in namespaces that are gone afterwards."""
    root = os.geteuid() == 0
    features = {feature.name: root and kernel.works(feature) for feature in kernel.FEATURES}
    uml = kernel.uml_faults()
    chosen = "direct" if all(features.values()) else "uml" if not uml else None
    return Diagnosis((*_rights(root), *_kernel(features, uml, chosen), *_programs(), *_python(), *_images()), chosen)


def _rights(root: bool) -> Iterator[Finding]:
    yield Finding("rights", "root", root, remedy="run it as root, for instance with sudo")


def _kernel(features: dict[str, bool], uml: list[str], chosen: str | None) -> Iterator[Finding]:
    for name, works in features.items():
        remedy = "" if works else "User-mode Linux has it" if chosen == "uml" else "needs another kernel"
        yield Finding("kernel", name, works, needed=chosen is None, remedy=remedy)
    yield Finding("kernel", "User-mode Linux", not uml, needed=chosen is None, remedy="; ".join(uml))


def _programs() -> Iterator[Finding]:
    for program, package in preflight.PACKAGES.items():
        yield Finding("program", program, preflight.find(program) is not None, remedy=f"apt-get install {package}")
    for program, package in (preflight.LLDP | openvswitch.PROGRAMS).items():
        present = preflight.find(program) is not None
        yield Finding("program", program, present, needed=False, remedy=f"apt-get install {package}")
    for kind, package in preflight.DRIVERS.items():
        present = preflight.has_driver(kind)
        needed = kind == "lxc"
        yield Finding("program", f"libvirt {kind.value} driver", present, needed, remedy=f"apt-get install {package}")
    yield Finding("program", "zebra and bgpd", preflight.has_routers(), False, f"apt-get install {preflight.ROUTERS}")


def _python() -> Iterator[Finding]:
    for module, extra in preflight.PYTHON_PACKAGES.items():
        present = module not in preflight.missing_modules()
        yield Finding("python", module, present, remedy=f"pip install 'virtcloud[{extra}]'")


def _images() -> Iterator[Finding]:
    yield Finding(
        "image",
        "kernel for QEMU guests",
        guest_kernel.find() is not None,
        needed=False,
        remedy="a lab that needs one fetches it (27 MB, apt-get download)",
    )
