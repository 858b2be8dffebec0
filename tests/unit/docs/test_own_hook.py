import inspect
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "test-your-own-hook.md"


def test_the_examples_pass(tmp_path: Path) -> None:
    """Run each test of the page exactly as printed, except the test that needs a recorded event."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        if "recorded_event(" not in block:  # this example needs a recording from the reader's site
            exec(block, names)  # noqa: S102 - executes the code of the page
    tests = {name: function for name, function in names.items() if name.startswith("test_")}
    assert len(tests) == 3
    for test in tests.values():
        test(*([tmp_path] if inspect.signature(test).parameters else []))
