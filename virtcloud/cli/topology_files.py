"""Topologies in files: one file, or a folder with a file for each site and ``topology.yaml`` for everything else.

``topology.yaml`` contains the name, the transports and the links between sites. The file of a site may have any name.
Like the output of ``topology show --site``, this file contains ``site``, and ``links`` between elements of the site.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import click
from pydantic import ValidationError

from virtcloud.cli.differences import format_yaml
from virtcloud.cli.options import name_of
from virtcloud.client.sbf import SbfClient
from virtcloud.model.document import Document
from virtcloud.model.errors import BadDocument, BadInput, NotFound
from virtcloud.model.site import SitePart, site_part_of
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Link
from virtcloud.model.transport import Transport
from virtcloud.model.validation_errors import fault_path, format_validation_errors, list_validation_errors
from virtcloud.model.values import Name
from virtcloud.model.yaml_document import YamlText, parse_yaml

COMMON_FILE = "topology.yaml"
SUFFIXES = (".yaml", ".yml")
D = TypeVar("D", Topology, SitePart)


class CommonFile(Document):
    """A file with the part of a topology that belongs to no single site."""

    name: Name
    transports: tuple[Transport, ...] = ()
    links: tuple[Link, ...] = ()
    version: str | int | None = None


class SiteFile(SitePart):
    """A file with a site's part of the topology.

    The file is based on version ``version`` of the site's part in SBF's topology. None: the file has no version.
    """

    version: str | int | None = None


class FileOrFolder(click.File):
    """A file to read, '-' for standard input, or a folder."""

    name = "file or folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's signature
        """Open a file, or return the path of a folder."""
        if isinstance(value, str) and Path(value).is_dir():
            return Path(value)
        return super().convert(value, param, ctx)


def read_input(given: IO[str] | Path) -> "YamlText | Path":
    """Return a folder, or the parsed text of a file. Raise BadDocument if the file is no YAML."""
    return given if isinstance(given, Path) else parse_yaml(given.read(), name_of(given))


def is_site_file(text: YamlText) -> bool:
    """Return whether the text is a site's part of a topology."""
    return isinstance(text.data, Mapping) and "site" in text.data and "sites" not in text.data


@dataclass(frozen=True, slots=True)
class _Part:
    text: YamlText
    links: tuple[Link, ...]
    site: SitePart | None = None


def read_folder(folder: Path) -> tuple[Topology, str | int | None]:
    """Return a folder's topology, and the version of SBF's topology on which the folder is based.

    Raise BadDocument with the file and the line of a fault. Raise BadInput if ``topology.yaml`` is missing or a file is
    unreadable. Also raise BadInput if two files contain the same site or element.
    """
    common, parts = _read_common(folder), list(_read_sites(folder))
    _check_names(parts)
    for part in parts:
        _check_links_within(part)
    everything = [_Part(common[0], common[1].links), *parts]
    try:
        topology = Topology.model_validate(
            {
                "name": common[1].name,
                "transports": common[1].transports,
                "sites": tuple(part.site.site for part in parts if part.site),
                "links": tuple(link for part in everything for link in part.links),
            }
        )
    except ValidationError as error:
        raise BadDocument("\n".join(_locate_faults(error, everything, parts))) from error
    return topology, common[1].version


def _read_common(folder: Path) -> tuple[YamlText, CommonFile]:
    file = folder / COMMON_FILE
    if not file.exists():
        raise BadInput(
            f"{folder}: expected {COMMON_FILE} with the topology's name and transports, found none: begin with "
            f"'virtcloud topology show --per-site {folder}'"
        )
    text = _parse_file(file)
    return text, text.read(CommonFile)


def _read_sites(folder: Path) -> Iterator[_Part]:
    for file in _list_files(folder):
        if file.name != COMMON_FILE:
            text = _parse_file(file)
            site = text.read(SiteFile)
            yield _Part(text, site.links, site)


def _list_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and not file.name.startswith("."))


def _parse_file(file: Path) -> YamlText:
    try:
        return parse_yaml(file.read_text(encoding="utf-8", errors="surrogateescape"), str(file))
    except OSError as error:
        raise BadInput(f"{file}: cannot be read: {error.strerror}") from error


def _check_names(parts: list[_Part]) -> None:
    seen: dict[str, str] = {}
    for part in parts:
        if part.site is None:
            continue
        names = [f"site {part.site.site.name}", *(f"element {element.name}" for element in part.site.site.elements)]
        for name in dict.fromkeys(names):
            if name in seen:
                raise BadInput(f"{part.text.source}: {name} is also in {seen[name]}: rename or remove one of the two")
            seen[name] = part.text.source


def _check_links_within(part: _Part) -> None:
    if part.site is None:
        return
    names = {element.name for element in part.site.site.elements}
    for index, link in enumerate(part.links):
        for end, outside in (("a", link.a), ("b", link.b)):
            if outside.element not in names:
                message = (
                    f"expected a port of an element of site {part.site.site.name}, got {outside}; links between sites "
                    f"are in {COMMON_FILE}"
                )
                raise BadDocument(part.text.locate(["links", index, end], message))


def _locate_faults(error: ValidationError, everything: list[_Part], sites: list[_Part]) -> Iterator[str]:
    links = [(part, index) for part in everything for index in range(len(part.links))]
    for detail in list_validation_errors(error):
        path = fault_path(detail)
        part, rest = everything[0], path
        match path:
            case ["sites", int() as index, *inner]:
                part, rest = sites[index], ["site", *inner]
            case ["links", int() as index, *inner]:
                part, rest = links[index][0], ["links", links[index][1], *inner]
        yield part.text.locate_error(detail, rest)


def write_folder(folder: Path, topology: Topology, version: str | None) -> list[Path]:
    """Write a topology to a folder, and return the files. Raise BadInput for a site named ``topology``.

    Also raise BadInput if the folder cannot be written, or contains a YAML file other than the returned files.
    """
    parts = {site.name: site_part_of(topology, site.name) for site in topology.sites}
    within = {link for part in parts.values() for link in part.links}
    common = CommonFile(
        name=topology.name,
        transports=topology.transports,
        links=tuple(link for link in topology.links if link not in within),
        version=None if version is None else int(version),
    )
    texts = {f"{name}.yaml": format_yaml(part) for name, part in parts.items()}
    if COMMON_FILE in texts:
        raise BadInput(f"site 'topology': its file would have the name of {COMMON_FILE}: rename the site")
    texts[COMMON_FILE] = format_yaml(common)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in _list_files(folder):
            if file.name not in texts:
                raise BadInput(f"{file}: expected no file of another site in {folder}: remove the file first")
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written: {error.strerror}") from error
    return [folder / name for name in texts]


def order_like(topology: Topology, former: Topology) -> Topology:
    """Return the topology with its sites and links in the order of ``former``. New sites and links are at the end."""
    sites = {site.name: number for number, site in enumerate(former.sites)}
    links = {frozenset(link.ends): number for number, link in enumerate(former.links)}
    return topology.model_copy(
        update={
            "sites": tuple(sorted(topology.sites, key=lambda site: sites.get(site.name, len(sites)))),
            "links": tuple(sorted(topology.links, key=lambda link: links.get(frozenset(link.ends), len(links)))),
        }
    )


def add_site(topology: Topology | None, part: SitePart) -> Topology:
    """Return ``topology`` with the new site ``part``.

    If ``topology`` is None, return a topology with this site only. Raise BadInput if ``topology`` already has the site.
    For an invalid result, raise BadInput if ``topology`` is None, otherwise ValidationError.
    """
    name = part.site.name
    if topology is None:
        return Topology(name=name, sites=(part.site,), links=part.links)
    if any(site.name == name for site in topology.sites):
        raise BadInput(f"site {name} is in the topology already: change it with --site {name}")
    fields = {"name": topology.name, "transports": topology.transports, "sites": (*topology.sites, part.site)}
    return Topology.model_validate({**fields, "links": (*topology.links, *part.links)})


class TopologyFile(Topology):
    """A topology in a file, and the version of SBF's topology on which the file is based."""

    version: str | int | None = None


def read_topology(sbf: SbfClient, given: YamlText | Path) -> tuple[Topology, str | int | None]:
    """Return the wanted topology, and the version of SBF's topology on which the wanted topology is based.

    Raise the errors of :func:`read_folder` for a folder. Raise BadDocument for an invalid file. For a file with a
    site's part, raise BadInput if SBF already has the site, or the topology with the site is invalid.
    """
    if isinstance(given, Path):
        topology, version = read_folder(given)
        with suppress(NotFound):
            topology = order_like(topology, sbf.topology())
        return topology, version
    if not is_site_file(given):
        return read_complete(given)
    return complete_site(sbf, given.read(SiteFile))


def read_site(given: YamlText | Path, site: str) -> tuple[SitePart, str | int | None]:
    """Return a site's wanted part of the topology, and the version on which this part is based.

    Raise BadInput for a folder, and for the file of another site. Raise BadDocument for an invalid file.
    """
    if isinstance(given, Path):
        raise BadInput(f"{given}: expected the file of site {site}, got a folder")
    part = given.read(SiteFile)
    if part.site.name != site:
        raise BadInput(f"{given.source}: site.name: expected {site}, got {part.site.name}")
    return without_version(part, SitePart), part.version


def read_complete(given: YamlText | Path) -> tuple[Topology, str | int | None]:
    """Return the whole topology in a file or folder, and the version of SBF's topology on which this topology is based.

    Raise the errors of :func:`read_folder` for a folder. Raise BadDocument for an invalid file.
    """
    if isinstance(given, Path):
        return read_folder(given)
    document = given.read(TopologyFile)
    return without_version(document, Topology), document.version


def complete_site(sbf: SbfClient, part: SitePart) -> tuple[Topology, str | None]:
    """Return SBF's topology with a new site, and the version of SBF's topology.

    Raise BadInput if SBF already has the site, or if the new topology is invalid.
    """
    former, version = None, None
    with suppress(NotFound):
        former, version = sbf.versioned_topology()
    try:
        return add_site(former, part), version
    except ValidationError as error:
        raise BadInput(format_validation_errors(error)) from error


def without_version(document: Document, kind: type[D]) -> D:
    """Return a file's document without the key ``version``."""
    return kind.model_validate(document.model_dump(exclude={"version"}, exclude_unset=True))
