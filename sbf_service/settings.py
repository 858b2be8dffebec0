"""The service's settings: a TOML file, checked whole before anything is started."""

import tomllib
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from sbf_service.domain.admission import RequestLimits
from sbf_service.domain.authentication import LocalUsers
from sbf_service.secret_source import SecretSource
from virtcloud.model.access import QuotaLimits
from virtcloud.model.document import Document, explain_validation_error, list_validation_errors
from virtcloud.model.errors import BadDocument, BadInput
from virtcloud.model.values import Name, PatternText

Seconds = Annotated[float, Field(gt=0, le=86400)]

DEFAULT_DATABASE = "sqlite:////var/lib/virtcloud/sbf.db"
DEFAULT_LISTEN = "127.0.0.1:8800"


class ListenAddress(PatternText):
    """Where to listen, written ``host:port``; an IPv6 address stands in brackets."""

    __slots__ = ()
    pattern = r".+:[0-9]{1,5}"
    meaning = "an address and a port such as 127.0.0.1:8800"


class Credential(Document):
    """Who to be on a device. Here is only where its secrets are: ``{file = …}``, ``{env = …}``, ``{command = […]}``.

    ``enable`` is the password of the privileged mode, where it is not the account's.
    """

    username: str = Field(description="The account on the device.")
    key_file: Path | None = Field(None, description="File with the account's SSH key.")
    password: SecretSource | None = None
    enable: SecretSource | None = None
    known_hosts: Path | None = Field(
        None,
        description="File with the devices' SSH host keys, as OpenSSH writes it. A device whose key is not there, or "
        "is another one, is not logged in to. Without it any key is believed: give one wherever the way to the devices "
        "is not wholly yours.",
    )
    ca_file: Path | None = Field(
        None,
        description="File with certificates (PEM) of devices that are spoken to over HTTPS, or of who signed them; the "
        "name in a certificate does not matter. Without it any certificate is believed.",
    )


class RateLimit(PatternText):
    """How often something may be done, written ``60/minute``."""

    __slots__ = ()
    pattern = r"[1-9][0-9]{0,5}/(second|minute|hour)"
    meaning = "a rate such as 60/minute"


class RateLimits(Document):
    """How often callers may do what can hurt, counted by each replica for itself."""

    failed_tokens: RateLimit = Field(
        RateLimit("20/minute"),
        description="Tokens from one address that are not valid; then only ones that were valid before are heard.",
    )
    clusters: RateLimit = Field(
        RateLimit("60/minute"), description="Clusters, and dry runs of them, that one user asks for."
    )
    device_reads: RateLimit = Field(
        RateLimit("120/minute"), description="Devices that one caller has read: `diff --read`, `reconcile`, `verify`."
    )


class ServiceTiming(Document):
    """How long to wait, in seconds."""

    connect_timeout: Seconds = Field(5, description="Seconds until a device that does not answer is given up.")
    read_timeout: Seconds = Field(10, description="Seconds until an answer to a command is given up.")
    retry_first: Seconds = Field(0.5, description="Seconds before the first retry after a failure.")
    retry_most: Seconds = Field(30, description="Seconds before a retry at most; each pause is twice the last.")
    drain_deadline: Seconds = Field(
        60,
        description="Seconds after which an element that has not confirmed a removal keeps the numbers in quarantine.",
    )
    drift_interval: Seconds = Field(300, description="Seconds between two readings of a switch when nothing changes.")
    agent_silence: Seconds = Field(
        150, description="Seconds after which an agent that has not asked is taken for unreachable."
    )

    secret_timeout: Seconds = Field(5, description="Seconds until a secret's command is given up.")

    @property
    def drain(self) -> timedelta:
        """The drain deadline."""
        return timedelta(seconds=self.drain_deadline)

    worker_lease: Seconds = Field(
        30,
        ge=1,
        description="Seconds after which another replica may take over the devices of one that died. A lease is "
        "renewed six times in this time; a replica that could not renew it for two thirds of it leaves the device.",
    )
    conversation_timeout: Seconds = Field(
        300, description="Seconds until a whole conversation with a device, from login to read-back, is ended."
    )

    @property
    def lease(self) -> timedelta:
        """How long a worker holds an element without renewing its lease."""
        return timedelta(seconds=self.worker_lease)


class ServiceSettings(Document):
    """Everything that can be set."""

    database: str = Field(DEFAULT_DATABASE, description="SQLAlchemy's address of the database.")
    listen: ListenAddress = Field(ListenAddress(DEFAULT_LISTEN), description="Where to listen, `host:port`.")
    allow_plaintext: bool = Field(
        default=False, description="`true` lets tokens cross a network unencrypted, on a `listen` that is not loopback."
    )
    tls_certificate: Path | None = Field(
        None,
        description="File with the certificate of `listen`, and those between it and its authority (PEM). SIGHUP has "
        "it read anew.",
    )
    tls_key: Path | None = Field(None, description="File with the certificate's key, without a password.")
    tls_client_ca: Path | None = Field(
        None,
        description="File with the certificates of an authority: callers of `listen` must show a certificate of it, "
        "besides their token.",
    )
    socket: Path | None = Field(
        None, description="Where to listen for users of the same machine (AF_UNIX, never with TLS)."
    )
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = Field(
        (),
        description='Addresses and networks of proxies before SBF, such as `["127.0.0.1", "10.0.0.0/24"]`: only their '
        "`X-Forwarded-For` is believed. Anybody else's is ignored.",
    )
    local_users: LocalUsers = Field(
        LocalUsers.USER,
        description="What those are on `socket` who are neither root nor the service itself, which are operators: "
        "`user` takes each for the user of its own name, `token` wants a token of them.",
    )
    replica: Name | None = Field(None, description="This service's name, where several share one database.")
    workers: int = Field(64, ge=1, le=1000, description="How many elements are converged at the same time.")
    device_threads: int = Field(
        16,
        ge=1,
        le=1000,
        description="How many devices are read at the same time because callers ask (`element diff --read`, "
        "`element reconcile`, `site verify`); further calls are answered 503.",
    )
    credentials: dict[Name, Credential] = Field(default_factory=dict)
    quota: QuotaLimits = QuotaLimits()
    rates: RateLimits = RateLimits()
    limits: RequestLimits = RequestLimits()
    timing: ServiceTiming = ServiceTiming()

    @model_validator(mode="after")
    def _has_a_key_for_its_certificate(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise BadInput("expected tls_certificate and tls_key, or neither of them, got one")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise BadInput("expected tls_certificate and tls_key besides tls_client_ca, got neither")
        return self


def read_settings(path: Path) -> ServiceSettings:
    """Read settings. Raises BadDocument that names the file and every key at fault, BadInput for no such file."""
    try:
        return ServiceSettings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadDocument(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        lines = (
            f"{path}: {'.'.join(map(str, one['loc']))}: {explain_validation_error(one)}"
            for one in list_validation_errors(error)
        )
        raise BadDocument("\n".join(lines)) from error
