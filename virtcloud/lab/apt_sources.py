"""The Debian sources and transfer options of this machine's APT, for images and kernels of the lab.

Images contain packages of this machine's Debian release, from this machine's mirrors. The lab's kernel can come from a
newer release.
"""

import platform
import re
import subprocess
from pathlib import Path

from virtcloud.lab.errors import LabImpossible

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
TARGET_FORMAT = "$(SITE)|$(RELEASE)|$(ORIGIN)|$(COMPONENT)|$(SIGNED_BY)"
TRANSFER_OPTION = re.compile(r"Acquire::(https?|Retries|Check-Date|Check-Valid-Until)\b.*")


def release() -> str:
    """Return the code name of this machine's Debian release. Raise LabImpossible on other distributions."""
    system = platform.freedesktop_os_release()
    if system.get("ID") != "debian" or "VERSION_CODENAME" not in system:
        name = system.get("PRETTY_NAME", "another system")
        raise LabImpossible(f"the Debian image is built on Debian only, but this machine runs {name}")
    return system["VERSION_CODENAME"]


def debian_sources() -> str:
    """Return the Debian sources of this machine's APT (sources.list(5)). If APT has no package lists, download them.

    Raise LabImpossible if APT has no sources of this machine's Debian release.
    """
    codename = release()
    sources = format_sources(_list_targets(), codename, KEYRING)
    if not sources:
        updated = _run(["apt-get", "-q", "update"])
        sources = format_sources(_list_targets(), codename, KEYRING)
        if not sources:
            raise LabImpossible(
                f"APT has no Debian source with release {codename}, from which the image is built: correct "
                f"/etc/apt/sources.list.d, then: apt-get update\n{updated.stderr.strip()}".strip()
            )
    return sources


def format_sources(targets: str, codename: str, keyring: Path) -> str:
    """Return the sources of one Debian release, with its updates and security updates.

    ``targets`` contains one line for each package list, in the format TARGET_FORMAT. ``keyring`` is the file with the
    keys that verify sources without Signed-By.
    """
    releases = {codename, f"{codename}-updates", f"{codename}-security"}
    lines = []
    for site, suite, origin, component, signed_by in (line.split("|") for line in targets.splitlines()):
        if origin == "Debian" and suite in releases:
            key = signed_by if signed_by.startswith("/") else keyring
            lines.append(f"deb [signed-by={key}] {site} {suite} {component}\n")
    return "".join(dict.fromkeys(lines))


def newer_source(suite: str) -> str:
    """Return the sources of the Debian release ``suite``, from the mirrors of this machine's release.

    Raise LabImpossible if APT has no sources of this machine's Debian release.
    """
    codename = release()
    sources = format_newer_source(_list_targets(), codename, suite, KEYRING)
    if not sources:
        raise LabImpossible(f"expected an APT source of Debian {codename}, got none: correct /etc/apt/sources.list.d")
    return sources


def format_newer_source(targets: str, codename: str, suite: str, keyring: Path) -> str:
    """Return sources of the release ``suite`` from the mirrors of the release ``codename``.

    APT then downloads only the lists of packages, and no translations or other indexes.
    """
    sources = (line.split() for line in format_sources(targets, codename, keyring).splitlines())
    lines = [
        f"deb {signed_by[:-1]} lang=none target=Packages] {site} {suite} main\n"
        for _, signed_by, site, name, component in sources
        if (name, component) == (codename, "main")
    ]
    return "".join(dict.fromkeys(lines))


def transfer_options() -> list[str]:
    """Return APT's options for proxies, certificates and retries."""
    output = _run(["apt-config", "dump", "--no-empty", "--format", '%f "%v";%n']).stdout
    return [line for line in output.splitlines() if TRANSFER_OPTION.fullmatch(line)]


def _list_targets() -> str:
    return _run(["apt-get", "indextargets", "--format", TARGET_FORMAT, "Created-By: Packages"]).stdout


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 - constant programs
    except OSError as error:
        raise LabImpossible(f"the Debian image is built with APT, but {argv[0]} cannot run: {error}") from error
