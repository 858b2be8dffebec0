"""A driver whose conversations with the device are spans of the reconciliation's trace."""

from dataclasses import dataclass
from typing import Any

from sbf_service.reconcile.device_task import ReconcilableDriver
from virtcloud.tracing import child_span


@dataclass(frozen=True, slots=True)
class TracedDriver:
    """Passes each method on to ``inner``, within a span."""

    inner: ReconcilableDriver

    def read(self, scope: Any) -> Any:  # noqa: ANN401 - types of the device's kind
        """Return the observed state within ``scope``."""
        with child_span("device read"):
            return self.inner.read(scope)

    def apply(self, difference: Any) -> None:  # noqa: ANN401 - a type of the device's kind
        """Apply a difference to the running configuration."""
        with child_span("device apply"):
            self.inner.apply(difference)

    def save(self) -> bool:
        """Copy the running configuration to the startup configuration. Return False without a separate save step."""
        with child_span("device save"):
            return self.inner.save()

    def close(self) -> None:
        """End the session with the device."""
        self.inner.close()
