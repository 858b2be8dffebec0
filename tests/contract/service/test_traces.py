import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import ValidationError
from support.programs.tls import Authority
from support.sbf_fakes.http_calls import ask, body
from support.sbf_fakes.world import World

from sbf_service.log import get_log
from virtcloud import otlp_tracing
from virtcloud.jobs.request_ids import job_request_id, make_traceparent
from virtcloud.model.call_context import CollectorAddress, TelemetryKeys
from virtcloud.model.errors import BadInput
from virtcloud.otlp_tracing import make_tracer, tracing
from virtcloud.tracing import current_traceparent, install_tracer, span

log = get_log("sbf_service")


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    install_tracer(make_tracer(provider))
    yield exporter
    install_tracer(None)
    provider.shutdown()


def put(world: World, key: str, *hosts: str) -> str:
    request_id = job_request_id(key, 1)
    headers = {"X-Request-ID": request_id, "traceparent": make_traceparent(request_id)}
    assert ask(world, "PUT", f"/v1/clusters/{key}", body(*hosts), headers=headers).status_code == 201
    return make_traceparent(request_id)[3:35]


def names_by_parent(spans: tuple[ReadableSpan, ...], trace_id: str) -> dict[str, str]:
    """Map the name of each span in a trace to the name of the span's parent.

    The parent's name is "hook" if the parent is not in ``spans``, and "" if the span has no parent.
    """
    names = {found.context.span_id: found.name for found in spans}
    chosen = [found for found in spans if format(found.context.trace_id, "032x") == trace_id]
    return {found.name: names.get(found.parent.span_id, "hook") if found.parent else "" for found in chosen}


def test_one_trace_leads_from_the_hook_to_the_switch(world: World, exported: InMemorySpanExporter) -> None:
    trace_id = put(world, "7.pbs", "brno-h1")
    world.converge("brno-sw1")
    parents = names_by_parent(exported.get_finished_spans(), trace_id)
    assert parents["PUT /v1/clusters/{key}"] == "hook"
    assert parents["reconcile switch"] == "PUT /v1/clusters/{key}"
    assert [parents[f"device {step}"] for step in ("read", "apply", "save")] == ["reconcile switch"] * 3
    assert "transaction write" in parents


def test_a_change_for_several_calls_links_to_their_traces(world: World, exported: InMemorySpanExporter) -> None:
    trace_ids = {put(world, "7.pbs", "brno-h1"), put(world, "8.pbs", "brno-h2")}
    world.converge("brno-sw1")
    (found,) = [one for one in exported.get_finished_spans() if one.name == "reconcile switch"]
    assert {format(link.context.trace_id, "032x") for link in found.links} == trace_ids
    assert found.parent is None


def test_an_agent_gets_the_trace_of_the_call(world: World, exported: InMemorySpanExporter) -> None:
    trace_id = put(world, "7.pbs", "brno-h1")
    (call,) = ask(world, "GET", "/v1/elements/brno-h1/wanted").json()["calls"]
    assert call["traceparent"][3:35] == trace_id


def test_a_failed_conversation_is_a_failed_span(world: World, exported: InMemorySpanExporter) -> None:
    put(world, "7.pbs", "brno-h1")
    world.switches["brno-sw1"].cut_off = True
    world.converge("brno-sw1")
    (found,) = [one for one in exported.get_finished_spans() if one.name == "device read"]
    assert not found.status.is_ok
    assert "does not answer" in str(found.status.description)


def test_calls_that_only_read_begin_no_trace(world: World, exported: InMemorySpanExporter) -> None:
    ask(world, "GET", "/v1/elements")
    world.sweep()
    assert exported.get_finished_spans() == ()


def test_without_a_tracer_the_header_of_the_hook_is_kept(world: World) -> None:
    trace_id = put(world, "7.pbs", "brno-h1")
    (call,) = ask(world, "GET", "/v1/elements/brno-h1/wanted").json()["calls"]
    assert (call["traceparent"][3:35], current_traceparent()) == (trace_id, None)


def test_without_a_collector_no_telemetry_package_is_imported() -> None:
    """The test ignores the package ``opentelemetry.api``, which FastAPI imports if this package is installed."""
    program = "import sys, sbf_service.__main__, sbf_service.server, virtcloud.agent.bootstrap\n"
    program += "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', "
    program += "'opentelemetry.exporter', 'google.protobuf'))])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 - our own
    assert ended.stdout.strip() == "[]"


def test_a_missing_extra_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    keys = TelemetryKeys(endpoint=CollectorAddress("http://127.0.0.1:4318"))
    traces = tracing(keys, "sbf", "one", log.warning)
    with pytest.raises(BadInput, match=r"pip install 'virtcloud\[telemetry\]'"), traces:
        pass


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file or directory"), ("rubbish", "no certificate or crl found")]
)
def test_an_unusable_ca_file_of_a_collector_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None, reason: str
) -> None:
    """The process runs nevertheless, without traces."""
    path = tmp_path / "collector.pem"
    if content is not None:
        path.write_text(content)
    keys = TelemetryKeys(endpoint=CollectorAddress("https://127.0.0.1:1"), ca_file=str(path))
    with tracing(keys, "sbf", "one", log.warning):
        pass
    assert f'traces_not_sent why="telemetry.ca_file {path}: expected certificates (PEM): ' in caplog.text
    assert reason in caplog.text


def test_a_usable_ca_file_of_a_collector_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Authority("authority").write(tmp_path)
    for ca_file in (str(path), str(tmp_path), None):
        keys = TelemetryKeys(endpoint=CollectorAddress("https://127.0.0.1:1"), ca_file=ca_file)
        with tracing(keys, "sbf", "one", log.warning):
            pass
    assert "traces_not_sent" not in caplog.text


@pytest.mark.parametrize("address", ["collector:4318", "http://collector:4318/v1/traces", ""])
def test_a_malformed_address_of_a_collector_is_explained(address: str) -> None:
    with pytest.raises(ValidationError, match="expected the address of a collector without a path, such as http://"):
        TelemetryKeys.model_validate({"endpoint": address})


def test_spans_reach_a_collector_over_otlp_http() -> None:
    received: list[tuple[str, ExportTraceServiceRequest]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, ExportTraceServiceRequest.FromString(sent)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        keys = TelemetryKeys(endpoint=CollectorAddress(f"http://127.0.0.1:{server.server_port}"))
        with tracing(keys, "sbf", "one", log.warning), span("call", request="job-7.pbs-1"):
            pass
        server.shutdown()
    ((path, request),) = received
    (resource,) = request.resource_spans
    names = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (path, names["service.name"], names["service.instance.id"]) == ("/v1/traces", "sbf", "one")
    assert [one.name for scope in resource.scope_spans for one in scope.spans] == ["call"]
    assert otlp_tracing.HEADER == "traceparent"
