"""The number of random sequences in the tests of ``tests/stateful``.

``VIRTCLOUD_SEQUENCES=20`` (``make test-stateful``) runs twenty times as many sequences as ``make test`` does.
"""

import os
from typing import Final

import hypothesis

FACTOR: Final = int(os.environ.get("VIRTCLOUD_SEQUENCES", "1"))


def make_settings(sequences: int, steps: int) -> hypothesis.settings:
    """Return the settings of a state machine: ``sequences`` times :data:`FACTOR` sequences of ``steps`` steps."""
    return hypothesis.settings(
        max_examples=sequences * FACTOR,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


def list_seeds(count: int) -> range:
    """Return ``count`` times :data:`FACTOR` seeds. A seed always leads to the same random sequence."""
    return range(count * FACTOR)
