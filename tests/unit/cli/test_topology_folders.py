from pathlib import Path

import pytest
from click.testing import CliRunner
from support.cli_calls import RunCommand
from support.sbf_fakes.world import three_sites

from virtcloud.cli import main
from virtcloud.cli.topology_files import add_site, order_like, read_folder, write_folder
from virtcloud.model.errors import BadInput
from virtcloud.model.site import site_part_of
from virtcloud.model.topology import Topology


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "sites", linked_sites(), "7")
    return tmp_path / "sites"


def linked_sites() -> Topology:
    document = three_sites().model_dump(mode="json")
    for site in document["sites"][:2]:
        site["switches"][0]["ports"].append("direct")
    document["links"].append({"a": "brno-sw1:direct", "b": "praha-sw1:direct"})
    return Topology.model_validate(document)


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def check(path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["topology", "check", str(path)])
    return result.exit_code, result.output


def test_a_folder_is_read_as_it_was_written(folder: Path) -> None:
    topology, version = read_folder(folder)
    assert (topology.elements, set(topology.links), version) == (
        linked_sites().elements,
        set(linked_sites().links),
        7,
    )
    assert sorted(file.name for file in folder.iterdir()) == ["brno.yaml", "plzen.yaml", "praha.yaml", "topology.yaml"]


def test_a_link_between_sites_is_in_the_common_file(folder: Path) -> None:
    assert "praha-sw1:direct" in (folder / "topology.yaml").read_text(encoding="utf-8")
    assert "praha-sw1:direct" not in (folder / "brno.yaml").read_text(encoding="utf-8")


def test_a_fault_of_a_site_names_its_file_and_line(folder: Path) -> None:
    replace(folder / "praha.yaml", "b: praha-sw1:p2", "b: praha-sw1:p9")
    code, output = check(folder)
    line = (folder / "praha.yaml").read_text(encoding="utf-8").splitlines().index("  b: praha-sw1:p9") + 1
    assert code == 2
    assert output.startswith(f"virtcloud: {folder}/praha.yaml:{line}: links.1.b: port praha-sw1:p9: expected a port of")


def test_a_fault_of_an_intersite_link_names_the_common_file(folder: Path) -> None:
    replace(folder / "topology.yaml", "praha-sw1:direct", "praha-sw9:direct")
    assert f"{folder}/topology.yaml:" in check(folder)[1]
    assert "expected an element of this topology, got praha-sw9" in check(folder)[1]


def test_an_unknown_key_names_the_file_of_its_site(folder: Path) -> None:
    replace(folder / "brno.yaml", "site:", "sites:")
    assert f"{folder}/brno.yaml:1: sites: unknown key" in check(folder)[1]


def test_an_element_in_two_files_names_both(folder: Path) -> None:
    replace(folder / "praha.yaml", "name: praha-h1", "name: brno-h1")
    message = f"{folder}/praha.yaml: element brno-h1 is also in {folder}/brno.yaml: rename or remove one of the two"
    assert check(folder) == (2, f"virtcloud: {message}\n")


def test_a_link_to_another_site_belongs_to_the_common_file(folder: Path) -> None:
    replace(folder / "brno.yaml", "b: brno-sw1:p1", "b: praha-sw1:direct")
    code, output = check(folder)
    assert code == 2
    assert "expected a port of an element of site brno, got praha-sw1:direct; links between sites are in" in output


def test_the_error_about_a_missing_common_file_contains_a_remedy(tmp_path: Path) -> None:
    code, output = check(tmp_path)
    assert code == 2
    assert f"begin with 'virtcloud topology show --per-site {tmp_path}'" in output


def test_a_file_of_another_site_in_the_folder_is_refused(folder: Path) -> None:
    (folder / "old.yaml").write_text("site: {name: old}", encoding="utf-8")
    with pytest.raises(BadInput, match=r"old\.yaml: expected no file of another site in"):
        write_folder(folder, linked_sites(), "7")


def test_a_folder_is_sent_with_its_version(run: RunCommand, tmp_path: Path) -> None:
    shown = run("topology", "show", "--per-site", str(tmp_path / "sites"))
    assert (shown.exit_code, shown.output) == (0, f"wrote 2 files to {tmp_path / 'sites'}\n")
    assert run("topology", "set", str(tmp_path / "sites"), "--yes").exit_code == 0


def test_a_folder_that_was_not_changed_causes_no_difference(folder: Path) -> None:
    document = linked_sites().model_dump(mode="json")
    document["sites"].reverse()
    document["links"].reverse()
    former = Topology.model_validate(document)
    write_folder(folder, former, "8")
    assert order_like(read_folder(folder)[0], former) == former


def test_a_new_site_is_added_to_the_topology(folder: Path) -> None:
    topology = three_sites()
    part = site_part_of(topology, "plzen")
    first_two = Topology(
        name=topology.name,
        transports=topology.transports,
        sites=topology.sites[:2],
        links=tuple(link for link in topology.links if link not in part.links),
    )
    assert add_site(first_two, part) == topology
    with pytest.raises(BadInput, match="site plzen is in the topology already: change it with --site plzen"):
        add_site(topology, part)
