"""The actions of users, administrators, schedulers and agents about clusters, which `test_rights_machine` chooses."""

from itertools import count
from typing import Any

import httpx
from stateful.rights_calls import CheckedCalls
from stateful.rights_model import (
    ACTORS,
    ADMINISTRATORS,
    AGENTS,
    OPERATOR,
    RIGHTS,
    SCHEDULER,
    STARTER,
    USERS,
    Actor,
    has_role_for,
    is_owner,
    reads,
)
from support.sbf_fakes.topology_changes import Choice

from virtcloud.model.cluster import ENDED_STATES
from virtcloud.model.views import ClusterView

KEYS = ("maple", "birch", "cedar", "7.torque")
HOSTS = ("brno-h1", "brno-h2", "praha-h1", "plzen-h1")
NAMES = ("ring", "mesh")
IMAGES = ("oakdisk", "elmdisk")
UNKNOWN_PARTS = (404, 409, 410, 422)
"""The statuses of refusals that do not depend on the caller's right to the cluster."""
NOT_ADMITTED = "urn:virtcloud:problem:not-admitted"
"""The problem of a permitted call that names an image which the cluster may not use."""
REQUEST_STATUSES = {200, 201, 403, 404, 409, 410, 422}


class ClusterActions(CheckedCalls):
    """SBF with its callers. Each public method whose only parameter is a :class:`Choice` is an action."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = count(100)
        self.confirmed: dict[str, tuple[str, set[str]]] = {}
        """By key: the owner and the hosts of a job that the batch server confirmed."""
        self.sent: list[tuple[Actor, str, dict[str, Any]]] = []
        """Successful requests for clusters."""

    # Calls about clusters.

    def choose_pair(self, choose: Choice) -> tuple[Actor, str]:
        """Return a caller and a key. The caller often owns the newest cluster with this key, or is invited to it."""
        key = choose.choice(KEYS)
        view = self.newest(key)
        if view is not None and choose.random() < 0.6:
            invited = [user for user in USERS if (view.id, user.name) in self.invited and user.name != view.spec.owner]
            return choose.choice((self.actor_of(view), *invited)), key
        return choose.choice((*USERS, *ACTORS)), key

    def actor_of(self, view: ClusterView) -> Actor:
        return next(user for user in USERS if user.name == view.spec.owner)

    def on_cluster(  # noqa: PLR0913 - a call, its caller and the caller's right
        self, actor: Actor, method: str, key: str, rest: str, body: object = None, *, right: str
    ) -> httpx.Response | None:
        """Make a call about a cluster, and compare the answer with the caller's right.

        Return the answer if the caller has the right, else None.
        """
        view, path = self.newest(key), f"/v1/clusters/{key}{rest}"
        allowed = view is not None and RIGHTS[right](actor, view)
        visible = view is not None and reads(actor, view)
        answer = self.call(actor, method, path, body)
        where = f"{actor.name} ({actor.role}) {method} {path}: {answer.status_code} {answer.text}"
        if not has_role_for(actor, right):
            assert answer.status_code == 403, where
        elif view is None:
            assert answer.status_code == 404, where
        elif not visible:
            assert answer.status_code == 404, where
            self.check_hidden(actor, key, answer, method, path, body)
        elif not allowed:
            assert answer.status_code == 403, where
        else:
            refused = answer.status_code in UNKNOWN_PARTS or NOT_ADMITTED in answer.text
            assert answer.status_code in {200, 201, 202, 204} or refused, where
            return answer
        return None

    def request_a_cluster(self, choose: Choice) -> None:
        actor = choose.choice(USERS) if choose.random() < 0.7 else choose.choice((SCHEDULER, STARTER, *ACTORS))
        running = {view.key for view in self.views if view.state not in ENDED_STATES}
        key = choose([key for key in KEYS if key not in running]) if choose.random() < 0.7 else None
        attempt = choose.choice((None, None, 0, 1, 2)) if choose.random() < 0.5 else None
        body: dict[str, Any] = {"spec": self.choose_spec(actor, choose), "attempt": attempt}
        if self.sent and choose.random() < 0.2:
            actor, key, body = choose.choice(self.sent)
            if choose.random() < 0.3:
                body = body | {"spec": body["spec"] | {"deadline_s": 77}}
        self.put(actor, key or choose.choice(KEYS), body, dry_run=choose.random() < 0.15)

    def choose_spec(self, actor: Actor, choose: Choice) -> dict[str, Any]:
        owner = actor.name if actor.is_user and choose.random() < 0.9 else choose.choice(USERS).name
        image = choose.choice(IMAGES) if choose.random() < 0.2 else "debian"
        guests = [
            {"name": f"gq{next(self.numbers)}z", "host": host, "image": image}
            for host in choose.sample(HOSTS, choose.choice((1, 1, 2)))
        ]
        spec: dict[str, Any] = {"owner": owner, "guests": guests, "lease_s": choose.choice((600, 3000))}
        running = [view for view in self.views if view.state not in ENDED_STATES and view.network is None]
        permitted = [view for view in running if owner in {view.spec.owner, *view.spec.shares_with}]
        network = choose(permitted if choose.random() < 0.7 else running)
        if network is not None and choose.random() < 0.4:
            return spec | {"joins": choose.choice((network.key, network.spec.name or network.key))}
        if choose.random() < 0.4:
            spec["name"] = choose.choice(NAMES)
        if choose.random() < 0.5:
            spec["shares_with"] = [choose.choice(USERS).name]
        return spec | {"vpn": choose.random() < 0.5}

    def put(self, actor: Actor, key: str, body: dict[str, Any], *, dry_run: bool = False) -> httpx.Response:
        """Request a cluster. Check the owner of the cluster, and that a repeated request changes nothing."""
        path, owner = f"/v1/clusters/{key}{'?dry_run=true' if dry_run else ''}", body["spec"]["owner"]
        permitted = actor in {OPERATOR, SCHEDULER} or (actor.is_user and actor.name == owner)
        permitted |= actor == STARTER and not dry_run and STARTER.name in hosts_of(body)
        rows = self.rows
        answer = self.call(actor, "PUT", path, body)
        where = f"{actor.name} ({actor.role}) PUT {path} {body}: {answer.status_code} {answer.text}"
        assert permitted or answer.status_code == 403, where
        assert answer.status_code in REQUEST_STATUSES | ({503} if actor == STARTER else set()), where
        if answer.is_success and dry_run:
            assert self.rows == rows, where
        elif answer.is_success:
            self.check_cluster(actor, key, body, answer, where)
        return answer

    def check_cluster(self, actor: Actor, key: str, body: dict[str, Any], answer: httpx.Response, where: str) -> None:
        found = self.newest(key)
        assert found is not None, where
        assert found.id == answer.json()["id"], where
        assert (found.spec.owner, found.key) == (body["spec"]["owner"], key), where
        if actor == STARTER and answer.status_code == 201:
            self.check_confirmed(key, body, where)
        if answer.status_code == 201 and (joined := body["spec"].get("joins")):
            self.check_join(found, joined, where)
        self.sent.append((actor, key, body))
        self.repeat(actor, answer, "PUT", f"/v1/clusters/{key}", body)

    def check_confirmed(self, key: str, body: dict[str, Any], where: str) -> None:
        """A job starter creates only clusters of jobs that the batch server confirmed, each once."""
        owner, hosts = self.confirmed.pop(key)
        assert (owner, hosts_of(body) <= hosts) == (body["spec"]["owner"], True), where

    def check_join(self, found: ClusterView, joined: str, where: str) -> None:
        network = next(view for view in reversed(self.views) if view.key == found.network)
        assert joined in {network.key, network.spec.name}, where
        assert found.spec.owner in {network.spec.owner, *network.spec.shares_with}, where

    def read_a_cluster(self, choose: Choice) -> None:
        actor, key = self.choose_pair(choose)
        rest = choose.choice(("", "", "?after=0&wait=0", "/peers", "/guests", "/traffic", "/outside"))
        answer = self.on_cluster(actor, "GET", key, rest, right="read")
        if answer is not None and answer.status_code == 200:
            self.check_etag(answer, key, rest)

    def check_etag(self, answer: httpx.Response, key: str, rest: str) -> None:
        """An entity tag answers 304 only to callers who may read the cluster."""
        view, tag = self.newest(key), answer.headers["etag"]
        assert view is not None
        for actor in (*USERS, *ADMINISTRATORS, *AGENTS):
            again = self.call(actor, "GET", f"/v1/clusters/{key}{rest}", if_none_match=tag)
            assert reads(actor, view) or again.status_code == 404, f"{actor} {key}{rest}: {again.status_code}"

    def end_a_cluster(self, choose: Choice) -> None:
        actor, key = self.choose_pair(choose)
        rest = choose.choice(("", "", f"?attempt={choose.randint(0, 3)}", f"?owner={choose.choice(USERS).name}"))
        answer = self.on_cluster(actor, "DELETE", key, rest, right="end")
        if answer is not None and answer.is_success:
            view = self.newest(key)
            assert view is not None
            assert view.state in {*ENDED_STATES, "draining", "failing"}
            self.repeat(actor, answer, "DELETE", f"/v1/clusters/{key}{rest}")
            if choose.random() < 0.6:
                self.settle()

    def settle(self) -> None:
        """Workers and agents reconcile all elements, so the clusters that are being removed end."""
        self.world.dead_hosts.clear()
        self.world.settle()
        self.refresh()

    def extend_a_lease(self, choose: Choice) -> None:
        actor, key = self.choose_pair(choose)
        rest = "/lease" + choose.choice(("", "", f"?attempt={choose.randint(0, 3)}"))
        body = {"seconds": choose.choice((60, 4000))}
        answer = self.on_cluster(actor, "POST", key, rest, body, right="extend")
        if answer is not None and answer.is_success:
            self.repeat(actor, answer, "POST", f"/v1/clusters/{key}{rest}", body)

    def share_a_network(self, choose: Choice) -> None:
        actor, key = self.choose_pair(choose)
        method, rest = choose.choice(("PUT", "PUT", "DELETE")), f"/shares/{choose.choice(USERS).name}"
        answer = self.on_cluster(actor, method, key, rest, right="own")
        if answer is not None and answer.is_success:
            self.repeat(actor, answer, method, f"/v1/clusters/{key}{rest}")

    def switch_a_guest(self, choose: Choice) -> None:
        actor, view = choose.choice((*USERS, *ACTORS)), choose(self.views)
        if view is None or not view.spec.guests:
            return
        rest = f"/guests/{choose.choice(view.spec.guests).name}/power"
        body = {"power": choose.choice(("on", "off"))}
        answer = self.on_guest(actor, view, rest, body)
        if answer is not None and answer.is_success:
            self.repeat(actor, answer, "PUT", f"/v1/clusters/{view.key}{rest}", body)

    def on_guest(self, actor: Actor, view: ClusterView, rest: str, body: object) -> httpx.Response | None:
        return self.on_cluster(actor, "PUT", view.key, rest, body, right="control")

    # Lists.

    def list_clusters(self, choose: Choice) -> None:
        """Check that the list contains exactly the clusters that the caller may read, with any cursor."""
        actor, other = choose.choice(ACTORS), choose.choice(ACTORS)
        ended, order = choose.choice((True, False)), choose.choice(("oldest", "newest"))
        path = f"/v1/clusters?ended={ended}&order={order}&limit={choose.randint(1, 3)}"
        found, cursors = self.read_pages(actor, path)
        expected = {one.id for one in self.views if reads(actor, one) and (ended or one.state not in ENDED_STATES)}
        assert sorted(found) == sorted(expected), f"{actor} {path}: {found}, expected {expected}"
        if cursors:
            page = self.call(other, "GET", choose.choice(cursors))
            assert {one["id"] for one in page.json()} <= {view.id for view in self.views if reads(other, view)}

    def read_pages(self, actor: Actor, path: str) -> tuple[list[str], list[str]]:
        found, cursors = list[str](), list[str]()
        next_path: str | None = path
        while next_path is not None:
            answer = self.call(actor, "GET", next_path)
            assert answer.status_code == 200, answer.text
            found += [str(one["id"]) for one in answer.json()]
            next_path = answer.links.get("next", {}).get("url")
            cursors += [next_path] if next_path is not None else []
        return found, cursors

    def read_the_audit_log(self, choose: Choice) -> None:
        """Owners read all rows of their own clusters. Nobody reads rows of clusters that the caller may not read."""
        key = choose.choice(KEYS)
        owners = [self.actor_of(view) for view in self.views if view.key == key]
        actor = choose.choice((*owners, *owners, *USERS, *ADMINISTRATORS, choose.choice(ACTORS)))
        self.read_audit(
            actor, key, choose.choice(("", "&after=0&wait=0", "&order=newest&limit=3", "&order=oldest&limit=4"))
        )

    def read_audit(self, actor: Actor, key: str, order: str = "") -> None:
        answer = self.call(actor, "GET", f"/v1/audit?cluster={key}{order}")
        if not answer.is_success:
            assert answer.status_code in {403, 404}
            assert not any(view.key == key and is_owner(actor, view) for view in self.views)
            return
        readable = {view.id for view in self.views if reads(actor, view)}
        rows = answer.json()
        assert actor == OPERATOR or {row["cluster_id"] for row in rows} <= readable, rows
        if actor.is_user and not order:
            everything = self.as_operator(f"/v1/audit?cluster={key}")
            assert rows == [row for row in everything if row["cluster_id"] in readable]


def hosts_of(body: dict[str, Any]) -> set[str]:
    return {guest["host"] for guest in body["spec"]["guests"]}
