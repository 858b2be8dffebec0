"""The settings of traces (table ``[telemetry]``), used by SBF and the agent."""

from pydantic import Field

from virtcloud.model.document import Document


class TelemetryKeys(Document):
    """``[telemetry]``: traces of calls, transactions, and changes of devices and hosts."""

    endpoint: str | None = Field(
        None,
        pattern="^https?://[^/]+$",
        description="Address of an OpenTelemetry collector with OTLP over HTTP, such as `http://collector:4318`. "
        "Without this key, nothing is traced. Needs the extra `telemetry` (`pip install 'virtcloud[telemetry]'`).",
    )
    ca_file: str | None = Field(None, description="File with the certificates (PEM) of the collector's authority.")
