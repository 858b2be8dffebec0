"""The service's settings, read from a TOML file and validated at the start."""

import tomllib
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from sbf_service.credential_settings import Credential, SecretSource
from sbf_service.database_address import check_address
from sbf_service.domain.admission import RequestLimits
from sbf_service.domain.authentication import LocalUsers
from sbf_service.domain.image_rules import ImageLimits
from sbf_service.domain.oidc_identity import OidcRoles
from sbf_service.domain.placement import Overcommit
from sbf_service.domain.retention import RetentionLimits
from virtcloud.model.access import QuotaLimits
from virtcloud.model.call_context import TelemetryKeys
from virtcloud.model.document import Document
from virtcloud.model.errors import BadDocument, BadInput
from virtcloud.model.validation_errors import format_validation_errors
from virtcloud.model.values import Name, PatternText

Seconds = Annotated[float, Field(gt=0, le=86400)]

DEFAULT_DATABASE = "sqlite:////var/lib/virtcloud/sbf.db"
DEFAULT_LISTEN = "127.0.0.1:8800"


class ListenAddress(PatternText):
    """An address to listen on, ``host:port``. An IPv6 address is in brackets."""

    __slots__ = ()
    pattern = r".+:[0-9]{1,5}"
    meaning = "an address and a port such as 127.0.0.1:8800"

    @property
    def host(self) -> str:
        """The host part of the address, without brackets."""
        return self.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port number."""
        return int(self.rpartition(":")[2])

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this host can connect to the address."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class RateLimit(PatternText):
    """A rate limit such as ``60/minute``."""

    __slots__ = ()
    pattern = r"[1-9][0-9]{0,5}/(second|minute|hour)"
    meaning = "a rate such as 60/minute"


class RateLimits(Document):
    """Rate limits of expensive or dangerous calls. Each replica counts separately."""

    failed_tokens: RateLimit = Field(
        RateLimit("20/minute"),
        description="Invalid tokens from one address (IPv6: one /64 network). Above this rate, SBF accepts from this "
        "address or network only tokens that it has accepted before.",
    )
    clusters: RateLimit = Field(
        RateLimit("60/minute"), description="Creations of clusters by one user, including dry runs."
    )
    profiles: RateLimit = Field(RateLimit("60/minute"), description="VPN profiles that one caller requests.")
    certificates: RateLimit = Field(
        RateLimit("240/minute"), description="SSH certificates that one caller requests for gateways."
    )
    device_reads: RateLimit = Field(
        RateLimit("120/minute"),
        description="Readings of devices for one caller (such as `diff --read`, `reconcile`, `verify` and dry runs).",
    )
    polls: RateLimit = Field(
        RateLimit("240/minute"),
        description="Calls by one caller for the same document (an agent's wanted state, a cluster with `wait`) that "
        "return no newer version. A client that polls without a pause exceeds this limit.",
    )


class ServiceTiming(Document):
    """Time limits, in seconds."""

    connect_timeout: Seconds = Field(5, description="Seconds until a connection attempt to a device times out.")
    read_timeout: Seconds = Field(10, description="Seconds until the answer to a command times out.")
    retry_first: Seconds = Field(0.5, description="Seconds before the first retry after a failure.")
    retry_most: Seconds = Field(
        30,
        description="Largest pause before a retry, in seconds. The pause doubles with each failure. SBF "
        "shortens each pause by a random part, which is at most half of the pause.",
    )
    drain_deadline: Seconds = Field(
        60,
        description="Seconds from the beginning of a cluster's removal. If an element has not confirmed the removal "
        "after this time, the cluster's VLAN IDs are put into quarantine.",
    )
    drift_interval: Seconds = Field(
        300,
        description="Seconds between two readings of a device whose wanted state does not change (drift detection).",
    )
    agent_silence: Seconds = Field(
        150,
        description="If an agent does not call for this number of seconds, the agent counts as unreachable, and its "
        "host's clusters as degraded. Before these seconds have passed, a host that died looks active. An agent calls "
        "at least once a minute. SBF answers each call after half of `agent_silence` seconds at the latest, and after "
        "the answer the agent calls again. An agent does not call while it applies a change. Therefore, with a value "
        "below 150, a host that starts many guests can count as unreachable.",
    )

    secret_timeout: Seconds = Field(5, description="Seconds until the command of a secret times out.")

    @property
    def drain(self) -> timedelta:
        """The drain deadline as a duration."""
        return timedelta(seconds=self.drain_deadline)

    worker_lease: Seconds = Field(
        30,
        ge=1,
        description="Seconds after which another replica may take over the devices of a replica that died. A replica "
        "holds a lease on each device that it uses, and renews the lease six times in this period. If two thirds of "
        "the period pass without a successful renewal, the replica stops using the device.",
    )
    conversation_timeout: Seconds = Field(
        300, description="Seconds until a whole conversation with a device, from login to read-back, times out."
    )

    @property
    def lease(self) -> timedelta:
        """The time after which a replica's lease on a device expires if the replica does not renew the lease."""
        return timedelta(seconds=self.worker_lease)


class RelayKeys(Document):
    """``[relay]``: sessions between users and guests (``virtcloud guest log|console|connect``, ``cluster ssh``)."""

    address: str | None = Field(
        None,
        pattern="^https?://[^/]+$",
        description="This replica's own address, such as `https://sbf1.example.org:8443`. The agents connect there for "
        "the sessions of this replica. Needed if several replicas share one database.",
    )
    sessions_per_user: int = Field(
        100, ge=1, le=10000, description="Largest number of concurrent sessions of one user at this replica."
    )
    idle: Seconds = Field(
        7200, description="A session ends if no byte passes in either direction for this number of seconds."
    )
    agent_wait: Seconds = Field(
        15,
        description="Seconds within which the agent of a guest's host must connect. After the connection, the agent "
        "must reach the guest within the same number of seconds.",
    )


class OidcKeys(Document):
    """``[console.oidc]``: an OpenID Connect provider whose users may log in to the console."""

    issuer: str = Field(
        pattern="^https?://[^?#]+$",
        description="Address of the provider, exactly as in its `/.well-known/openid-configuration`.",
    )
    client_id: Annotated[str, Field(min_length=1)] = Field(description="SBF's name at the provider.")
    client_secret: SecretSource | None = Field(
        None, description="SBF's secret at the provider; without it, SBF is a public client."
    )
    name: Annotated[str, Field(min_length=1, max_length=60)] = Field(
        "your organization", description="The provider's name on the login page."
    )
    scopes: str = Field("openid profile", description="Scopes that SBF requests.")
    ca_file: Path | None = Field(
        None, description="File with the certificates of the provider's authority (PEM); default: those of the machine."
    )
    roles: OidcRoles


class ConsoleKeys(Document):
    """``[console]``: the web console."""

    enabled: bool = Field(default=True, description="`false`: SBF answers no requests below `/console`.")
    session: Seconds = Field(28800, description="Seconds after which a user must log in to the console again.")
    oidc: OidcKeys | None = None


class ServiceSettings(Document):
    """All settings of the service."""

    database: Annotated[str, AfterValidator(check_address)] = Field(
        DEFAULT_DATABASE, description="Address of the database, in the format of SQLAlchemy."
    )
    listen: ListenAddress = Field(ListenAddress(DEFAULT_LISTEN), description="Address to listen on, `host:port`.")
    allow_plaintext: bool = Field(
        default=False, description="`true` allows unencrypted tokens on a `listen` address other than the loopback."
    )
    tls_certificate: Path | None = Field(
        None,
        description="File with the certificate of `listen` and its intermediate certificates (PEM). SBF reads the "
        "file again on SIGHUP.",
    )
    tls_key: Path | None = Field(None, description="File with the certificate's key, without a password.")
    tls_client_ca: Path | None = Field(
        None,
        description="File with the certificates of an authority. With this setting, callers of `listen` must present a "
        "certificate that this authority issued, in addition to their token. SBF reads the file again on SIGHUP.",
    )
    socket: Path | None = Field(
        None, description="Path of an AF_UNIX socket for users on SBF's host. The socket never uses TLS."
    )
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = Field(
        (),
        description='Addresses and networks of proxies in front of SBF, such as `["127.0.0.1", "10.0.0.0/24"]`. SBF '
        "uses `X-Forwarded-For` only from these addresses.",
    )
    local_users: LocalUsers = Field(
        LocalUsers.USER,
        description="How SBF identifies local users on `socket`: `user` by the user ID that the kernel reports, "
        "`token` by a token. Root and the service's own user are always operators.",
    )
    replica: Name | None = Field(None, description="Name of this replica if several replicas share one database.")
    workers: int = Field(
        64,
        ge=1,
        le=1000,
        description="Largest number of switches and provider edges that this replica reconciles at the same time.",
    )
    device_threads: int = Field(
        16,
        ge=1,
        le=1000,
        description="Largest number of devices that are read at the same time for callers (such as `element diff "
        "--read`, `element reconcile` and `site verify`). SBF answers further calls with status 503.",
    )
    credentials: dict[Name, Credential] = Field(default_factory=dict)
    quota: QuotaLimits = QuotaLimits()
    rates: RateLimits = RateLimits()
    limits: RequestLimits = RequestLimits()
    images: ImageLimits = ImageLimits()
    placement: Overcommit = Overcommit()
    relay: RelayKeys = RelayKeys()
    telemetry: TelemetryKeys = TelemetryKeys()
    console: ConsoleKeys = ConsoleKeys()
    retention: RetentionLimits = RetentionLimits()
    timing: ServiceTiming = ServiceTiming()

    @model_validator(mode="after")
    def _check_tls_files(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise BadInput("expected both tls_certificate and tls_key, or neither; got only one")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise BadInput("tls_client_ca: expected tls_certificate and tls_key too, got neither")
        return self


def read_settings(path: Path) -> ServiceSettings:
    """Read a settings file in UTF-8, with or without a byte order mark.

    Raise BadInput for a file that is missing or not readable. Raise BadDocument for an invalid file; the message lists
    every invalid key.
    """
    try:
        return ServiceSettings.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be read: {error.strerror}; name the settings file with --config, or correct its rights"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadDocument(f"{path}: not TOML: {error}; correct the settings file") from error
    except ValidationError as error:
        raise BadDocument(format_validation_errors(error, f"{path}: ")) from error
