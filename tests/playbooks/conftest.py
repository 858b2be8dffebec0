"""Machines for each test module. Test modules run in parallel, so each module starts its own machines."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.installation.ansible_machines import NoMachinesError, Site, check_requirements, running_machines
from support.installation.package_builds import ensure_wheels


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Machines with the test module's ``ADDRESSES``. virtcloud is not installed on these machines.

    The inventory contains the path of the archive of virtcloud's wheels.
    """
    try:
        check_requirements()
        with ThreadPoolExecutor(1) as executor:
            archive = executor.submit(ensure_wheels)  # runs while the image is built and the machines boot
            with running_machines(tmp_path_factory.mktemp("site"), request.module.ADDRESSES) as site:
                variables = {**site.ssh_variables(), "program_archive": str(archive.result())}
                site.inventory["all"] = {"vars": variables}
                yield site
    except NoMachinesError as error:
        pytest.skip(f"NOT TESTED: {error}")
