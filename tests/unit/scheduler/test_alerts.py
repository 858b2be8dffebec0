from pathlib import Path

import pytest

from virtcloud.scheduler.alerts import AlertName

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "when-something-fails.md"


@pytest.mark.parametrize("name", AlertName)
def test_every_alert_is_explained_with_what_to_do(name: AlertName) -> None:
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    assert all(len(cell) > 8 for cell in row.strip("|").split("|"))
