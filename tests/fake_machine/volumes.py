"""File systems that are folders."""

import shutil
from pathlib import Path


class FakeVolumes:
    """Folders that are taken for file systems of their own; there is no limit."""

    def __init__(self) -> None:
        """Begin with none."""
        self.places: set[Path] = set()

    def mounted(self, place: Path) -> bool:
        """Say whether it was mounted."""
        return place in self.places

    def mount(self, place: Path, size: int, files: int) -> None:
        """Note it."""
        assert not list(place.iterdir())
        self.places.add(place)

    def unmount(self, place: Path) -> None:
        """Empty it."""
        self.places.remove(place)
        shutil.rmtree(place)
        place.mkdir()
