"""The tracer of the extra ``telemetry``: OpenTelemetry's SDK, which sends spans with OTLP over HTTP."""

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from virtcloud import __version__
from virtcloud.model.call_context import TelemetryKeys
from virtcloud.model.errors import BadInput
from virtcloud.tracing import Span, install_tracer

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

HEADER = "traceparent"


@dataclass(frozen=True, slots=True)
class OtlpSpan:
    """A span of OpenTelemetry."""

    inner: "trace.Span"

    def describe(self, name: str | None = None, **attributes: str | int) -> None:
        """Add attributes to the span. Unless ``name`` is None, also rename the span."""
        if name is not None:
            self.inner.update_name(name)
        self.inner.set_attributes(attributes)


@dataclass(frozen=True, slots=True)
class OtlpTracer:
    """Creates spans with one provider of OpenTelemetry's SDK."""

    tracer: "trace.Tracer"

    @contextmanager
    def span(
        self, name: str, parent: str | None, links: Sequence[str], attributes: Mapping[str, str | int]
    ) -> Iterator[Span]:
        """Begin a span. The end of the context ends the span."""
        from opentelemetry import trace  # noqa: PLC0415 - an optional package
        from opentelemetry.context import Context  # noqa: PLC0415

        context = _extract(parent) if parent else Context() if links else None
        linked = [trace.Link(trace.get_current_span(_extract(link)).get_span_context()) for link in links]
        with self.tracer.start_as_current_span(name, context, attributes=attributes, links=linked) as started:
            yield OtlpSpan(started)

    def traceparent(self) -> str | None:
        """Return the trace context of the current span, or None without a span."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        return carrier.get(HEADER)


def _extract(traceparent: str) -> "Context":
    from opentelemetry.context import Context  # noqa: PLC0415 - an optional package
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    return TraceContextTextMapPropagator().extract({HEADER: traceparent}, Context())


def make_tracer(provider: "TracerProvider") -> OtlpTracer:
    """Return the tracer of a provider."""
    return OtlpTracer(provider.get_tracer("virtcloud", __version__))


@contextmanager
def tracing(keys: TelemetryKeys, service: str, instance: str, warn: Callable[..., None]) -> Iterator[None]:
    """While the context is open, send traces to the collector in the settings. At the end, send the remaining spans.

    If the settings name no collector, do nothing. If the settings name a collector and the extra ``telemetry`` is not
    installed, raise BadInput. If ``ca_file`` cannot be used, log this fault with ``warn``: the process runs
    nevertheless, but the collector receives no traces.
    """
    if keys.endpoint is None:
        yield
        return
    if (fault := find_ca_file_fault(keys)) is not None:
        warn("traces_not_sent", why=fault)
    provider = _make_provider(keys, service, instance)
    install_tracer(make_tracer(provider))
    try:
        yield
    finally:
        install_tracer(None)
        provider.shutdown()


def check_packages(keys: TelemetryKeys) -> None:
    """Raise BadInput if the settings name a collector, but the extra ``telemetry`` is not installed."""
    if keys.endpoint is None:
        return
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: PLC0415 - an optional package
        import opentelemetry.sdk.resources  # noqa: PLC0415
        import opentelemetry.sdk.trace.export  # noqa: F401, PLC0415
    except ImportError as error:
        raise BadInput(
            f"telemetry.endpoint = '{keys.endpoint}': expected the packages of the extra 'telemetry', found no "
            f"package {error.name}: install the extra (pip install 'virtcloud[telemetry]'), or remove the key"
        ) from error


def find_ca_file_fault(keys: TelemetryKeys) -> str | None:
    """Return the reason why ``ca_file`` cannot be used, with a remedy. Return None without a fault or ``ca_file``."""
    if not keys.ca_file or Path(keys.ca_file).is_dir():  # the exporter also accepts a folder of certificates
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(keys.ca_file)
    except OSError as error:
        return (
            f"telemetry.ca_file {keys.ca_file}: expected certificates (PEM): {error.strerror or error}; put the file "
            "there, readable by the service's user, or correct the service's settings; then restart the service"
        )
    return None


def _make_provider(keys: TelemetryKeys, service: str, instance: str) -> "TracerProvider":
    check_packages(keys)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    names = {"service.name": service, "service.instance.id": instance, "service.version": __version__}
    provider = TracerProvider(resource=Resource.create(names))
    exporter = OTLPSpanExporter(endpoint=f"{keys.endpoint}/v1/traces", certificate_file=keys.ca_file)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
