"""The files and shell scripts that install an OpenPBS on a lab's nodes. Pure.

The PBS server runs on the station, the node on which SBF runs. A MoM, PBS's daemon, runs on each host.
"""

from collections.abc import Iterable, Mapping

from virtcloud.lab import addressing, node_services

SERVER = addressing.STATION
HOME = "/var/spool/pbs"
CONF = "/run/pbs.conf"
"""The path of pbs.conf on a host. The station has a separate /etc and uses /etc/pbs.conf."""
USERS = addressing.USERS
TOKEN = "/etc/virtcloud/pbs.token"  # noqa: S105 - the name of a file
SETTINGS = "/etc/virtcloud/hooks.json"
AGENT = "/etc/virtcloud/agent.toml"
SPOOL = "/var/spool/virtcloud"
PROCESSORS = 4
IMAGES = "/var/spool/images"
TEMPORARY = "/var/spool/temporary"
USER_HOMES = "/var/spool/home"
"""The folder on a host's disk that contains the users' homes. The host mounts this folder at /home."""
FOLDERS = {"755": ("aux", "mom_logs"), "751": ("mom_priv", "mom_priv/jobs", "mom_priv/hooks", "mom_priv/hooks/tmp")}
FREE = {"700": ("checkpoint",), "1777": ("spool", "undelivered")}
SSHD = f"""\
ListenAddress {addressing.STATION_ADDRESS}
HostKey /var/spool/ssh/host_key
AuthorizedKeysFile /var/spool/ssh/key.pub
PidFile none
AllowUsers {" ".join(USERS)}
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
Subsystem sftp internal-sftp
"""


def pbs_conf(programs: str, *, server: bool) -> str:
    """Return the text of pbs.conf.

    The station shares /tmp with the machine, where a ``qsub`` of another lab may have a socket and would receive this
    lab's jobs. Therefore the station has a separate TMPDIR.
    """
    yes, no = int(server), int(not server)
    return (
        f"PBS_SERVER={SERVER}\nPBS_EXEC={programs}\nPBS_HOME={HOME}\nPBS_CORE_LIMIT=unlimited\nPBS_SCP=/usr/bin/scp\n"
        f"PBS_TMPDIR={TEMPORARY if server else '/tmp'}\n"  # noqa: S108 - a host has a separate /tmp
        f"PBS_START_SERVER={yes}\nPBS_START_SCHED={yes}\nPBS_START_COMM={yes}\nPBS_START_MOM={no}\n"
    )


def set_up_station(programs: str, hosts: str, key: str, images: str) -> str:
    """Return the script that creates the station's /etc, /home, spool, users, and keys for file transfers.

    ``key`` is the users' public key. The server hook sends this key to SBF with each request. ``images`` is the lab's
    folder of images, which the script mounts at ``IMAGES``: users cannot enter the lab's folder.
    """
    create_users = "".join(
        f"useradd --no-create-home --uid {number} --home-dir /home/{name} --shell /bin/bash --password '*' {name}\n"
        f"mkdir -m 700 /home/{name} /home/{name}/.ssh\n"
        f"{_file(f'/home/{name}/.ssh/id_ed25519.pub', key)}\n"
        f"chown -R {number}:{number} /home/{name}\n"
        for name, number in USERS.items()
    )
    return f"""set -e
hostname {SERVER}
mount -t tmpfs -o mode=755 none /var/spool
mkdir /var/spool/etc /var/spool/ssh
mkdir -m 1777 {TEMPORARY}
mkdir {IMAGES}; mount --bind {images} {IMAGES}
cp -a /etc/. /var/spool/etc
mount --bind /var/spool/etc /etc
mount -t tmpfs -o mode=755 none /home
{create_users}
mkdir -p /etc/virtcloud
{_file("/etc/hosts", hosts)}
{_file("/etc/pbs.conf", pbs_conf(programs, server=True))}
{_file("/etc/profile.d/pbs.sh", f'PATH="$PATH:{programs}/bin"; export PATH{chr(10)}')}
{_file("/var/spool/ssh/sshd_config", SSHD)}
ssh-keygen -q -t ed25519 -N '' -f /var/spool/ssh/host_key
{_file("/var/spool/ssh/key.pub", key)}
chmod 644 /var/spool/ssh/*.pub
"""


def start_server(programs: str, version: str) -> str:
    """Return the script that starts the server's processes, in a mount namespace with a separate /run.

    PostgreSQL of OpenPBS creates a socket in /run.
    """
    return f"""set -e
cat > /var/spool/start <<'END'
set -e
mount -t tmpfs -o mode=755 none /run
mkdir -p /run/postgresql /run/lock /run/sshd
chown postgres /run/postgresql
{programs}/libexec/pbs_postinstall server {version} {programs} {HOME} '' 0
{programs}/libexec/pbs_init.d start
pgrep -f /var/spool/ssh/sshd_config >/dev/null || /usr/sbin/sshd -f /var/spool/ssh/sshd_config
END
unshare --mount --propagation private sh /var/spool/start
"""


def set_up_host(programs: str, version: str, keys: Iterable[tuple[str, str]]) -> str:
    """Return the script that writes a host's disk: a MoM's spool, the users' homes, and the host's boot script.

    ``keys`` contains pairs of name and text for the files in each user's folder ``.ssh``.
    """
    files = [(name, text) for name, text in keys]
    homes = {name: (f"{USER_HOMES}/{name}", number) for name, number in USERS.items()}
    create_homes = "\n".join(
        f"mkdir -p {home}/.ssh\n"
        + "\n".join(_file(f"{home}/.ssh/{file}", text) for file, text in files)
        + f"\nchmod 600 {home}/.ssh/*; chown -R {number}:{number} {home}"
        for home, number in homes.values()
    )
    folders = "\n".join(
        f"mkdir -m {mode} {' '.join(f'{HOME}/{folder}' for folder in names)}"
        for mode, names in {**FOLDERS, **FREE}.items()
    )
    environment = f"PATH=/usr/local/bin:/usr/bin:/bin:{programs}/bin\nTZ=UTC\nLANG=C.UTF-8\nPBS_CONF_FILE={CONF}\n"
    return f"""set -e
mkdir -m 755 {HOME}
{folders}
{create_homes}
{_file(f"{HOME}/pbs_environment", environment)}
{_file(f"{HOME}/pbs_version", f"{version}{chr(10)}")}
{_file(f"{HOME}/mom_priv/config", f"$clienthost {SERVER}{chr(10)}")}
{_file(node_services.BOOT_SCRIPT, _boot_host(programs), end="BOOT")}
"""


def _boot_host(programs: str) -> str:
    accounts = "".join(f"{name}:x:{number}:{number}::/home/{name}:/bin/bash\n" for name, number in USERS.items())
    groups = "".join(f"{name}:x:{number}:\n" for name, number in USERS.items())
    return f"""set -e
mount --bind {USER_HOMES} /home
others=$(grep -v ^root: /etc/passwd)
printf '%s\\n' 'root:x:0:0::/run/home:/bin/sh' "$others" '{accounts.strip()}' > /etc/passwd
{_file("/etc/group", groups, append=True)}
{_file(CONF, pbs_conf(programs, server=False))}
{start_mom(programs)}"""


def start_mom(programs: str) -> str:
    """Return the command that starts a host's MoM."""
    return f"PBS_CONF_FILE={CONF} PATH=/usr/sbin:/usr/bin:/sbin:/bin {programs}/sbin/pbs_mom\n"


def start_scheduler_agent(python: str, values: Mapping[str, float]) -> str:
    """Return the script that starts the batch server's agent. ``values`` contains settings for ``[scheduler]``."""
    settings = (
        f'sbf = "http://{addressing.STATION_ADDRESS}:{addressing.SBF_PORT}"\n'
        f'token_file = "{TOKEN}"\nstate = "{SPOOL}"\n'
        f'[scheduler]\nstatus = "{SPOOL}/scheduler.json"\n'
        + "".join(f"{key} = {value:g}\n" for key, value in values.items())
    )
    return f"""set -e
mkdir -p {SPOOL}
{_file(AGENT, settings)}
setsid {python} -m virtcloud.cli agent --config {AGENT} >{SPOOL}/log 2>&1 </dev/null &
"""


def configure_server(programs: str, hosts: Iterable[str]) -> str:
    """Return the script that adds the hosts to the server and configures the server to keep ended jobs."""
    lines = ["set server flatuid=True", "set server job_history_enable=True"]
    lines += [f"create node {host} resources_available.ncpus={PROCESSORS}" for host in hosts]
    return f"{programs}/bin/qmgr <<'END'\n" + "\n".join(lines) + "\nEND\n"


def _file(path: str, text: str, *, append: bool = False, end: str = "END") -> str:
    """Return the lines of a shell script that write a file. The text must not contain ``end`` as a line."""
    return f"cat {'>>' if append else '>'} {path} <<'{end}'\n{text}{end}"
