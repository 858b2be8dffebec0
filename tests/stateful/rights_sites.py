"""The actions of `test_rights_machine` about elements, sites and jobs, and the passing of time."""

from typing import Any

from stateful.rights_access import SITES, AccessActions
from stateful.rights_machine import HOSTS, KEYS
from stateful.rights_model import ACTORS, ADMINISTRATORS, AGENTS, OPERATOR, SCHEDULER, STARTER, USERS, Actor
from support.sbf_fakes.topology_changes import Choice

from virtcloud.model.access import Role

ELEMENTS = (*HOSTS, "brno-gw", "praha-gw")
SWITCHES = ("brno-sw1", "praha-sw1")
POOLS = ("100-103", "100-139", "101-104", "4000-4010")
REPORTS = {
    "vpn/connections": {"connections": []},
    "ssh/connections": {"connections": []},
    "outside": {"uses": []},
    "traffic": {"segments": []},
    "capacity": {"cpus": 8, "memory_mb": 16384},
}


def administers(actor: Actor, site: str) -> bool:
    return actor == OPERATOR or (actor.role is Role.SITE_ADMINISTRATOR and site in actor.sites)


def site_of(element: str) -> str:
    return element.partition("-")[0]


class RightsMachine(AccessActions):
    """SBF with its callers. Each public method whose only parameter is a :class:`Choice` is an action."""

    def __init__(self) -> None:
        """Begin with a running network, a member of another user, and two invited users."""
        super().__init__()
        alice, bob, _ = USERS
        hosts = ("brno-h1", "praha-h1")
        guests = [{"name": f"gq{next(self.numbers)}z", "host": host, "image": "debian"} for host in (*hosts, "brno-h2")]
        network = {"owner": "alice", "guests": guests[:2], "name": "ring", "shares_with": ["bob"], "vpn": True}
        self.put(alice, "maple", {"spec": network})
        self.put(bob, "birch", {"spec": {"owner": "bob", "guests": guests[2:], "joins": "ring"}})
        self.settle()
        for user in ("bob", "carol"):
            self.invite_user(alice, "maple", user, "PUT")
            self.make_device(self.actor(user, "user"), "maple")
        assert [view.state for view in self.views] == ["active", "active"]

    # Elements and their agents.

    def choose_reporter(self, choose: Choice) -> tuple[Actor, str, bool]:
        """Return a caller, an element, and whether the caller may report for the element."""
        actor, name = choose.choice((*AGENTS, *AGENTS, *ACTORS)), choose.choice(ELEMENTS)
        if actor.role is Role.AGENT and choose.random() < 0.5:
            name = actor.name
        return actor, name, actor == OPERATOR or (actor.role is Role.AGENT and actor.name == name)

    def read_the_wanted_state(self, choose: Choice) -> None:
        actor, name, allowed = self.choose_reporter(choose)
        answer = self.call(actor, "GET", f"/v1/elements/{name}/wanted?after=0&wait=0")
        assert answer.status_code == (200 if allowed else 403), answer.text
        if tag := answer.headers.get("etag"):
            for other in (*AGENTS, SCHEDULER, STARTER, *ADMINISTRATORS):
                again = self.call(other, "GET", f"/v1/elements/{name}/wanted", if_none_match=tag)
                assert again.status_code in ({200, 304} if other.name == name and other in AGENTS else {403}), (
                    again.text
                )

    def confirm_a_revision(self, choose: Choice) -> None:
        actor, name, allowed = self.choose_reporter(choose)
        revision = self.world.element(name).wanted_revision + choose.choice((0, 0, 0, -1, 1))
        body: dict[str, Any] = {"revision": max(revision, 0)}
        view = choose(self.views)
        if view is not None and choose.random() < 0.4:
            body[choose.choice(("incomplete", "remaining"))] = {view.id: self.make_trouble(actor, name, view.id)}
        path = f"/v1/elements/{name}/{choose.choice(('confirmed', 'confirmed', 'drifted'))}"
        answer = self.call(actor, "POST", path, body)
        assert (answer.status_code in {204, 409, 422}) if allowed else answer.status_code == 403, answer.text

    def make_trouble(self, actor: Actor, name: str, cluster: str) -> str:
        """Return a new mark for an error report about ``cluster``. Store the mark if the actor may report."""
        mark = f"tr{next(self.numbers)}z"
        if actor.name in {name, OPERATOR.name}:
            self.troubles[mark] = cluster, name
        return mark

    def report_trouble(self, choose: Choice) -> None:
        actor, name, allowed = self.choose_reporter(choose)
        chosen = choose.sample(self.views, min(len(self.views), 2))
        body = {
            "revision": self.world.element(name).wanted_revision,
            "message": "busy",
            choose.choice(("clusters", "refused")): {one.id: self.make_trouble(actor, name, one.id) for one in chosen},
        }
        answer = self.call(actor, "POST", f"/v1/elements/{name}/trouble", body)
        assert (answer.status_code in {204, 409}) if allowed else answer.status_code == 403, answer.text

    def report(self, choose: Choice) -> None:
        actor, name, allowed = self.choose_reporter(choose)
        kind = choose.choice(list(REPORTS))
        answer = self.call(actor, "PUT", f"/v1/elements/{name}/{kind}", REPORTS[kind])
        assert (answer.status_code in {204, 404, 409}) if allowed else answer.status_code == 403, answer.text

    def read_an_element(self, choose: Choice) -> None:
        actor, name = choose.choice(ACTORS), choose.choice((*ELEMENTS, *SWITCHES, ""))
        answer = self.call(actor, "GET", f"/v1/elements/{name}".rstrip("/"))
        reads_all = actor.role in {Role.OPERATOR, Role.SCHEDULER, Role.SITE_ADMINISTRATOR}
        allowed = reads_all or (actor.role is Role.AGENT and actor.name == name)
        assert answer.status_code == (200 if allowed else 403), answer.text

    def administer_an_element(self, choose: Choice) -> None:
        actor, name = choose.choice((*ADMINISTRATORS, *ADMINISTRATORS, *ACTORS)), choose.choice(SWITCHES)
        rest, body = choose.choice((
            ("clean", {"reason": "checked by hand"}),
            ("ports/adopt", {"ports": {"p2": {"mode": "access", "access": 20}}}),
            ("ports/release", {"ports": ["p2"]}),
            ("reconcile", None),
        ))  # fmt: skip
        answer = self.call(actor, "POST", f"/v1/elements/{name}/{rest}", body)
        allowed = administers(actor, site_of(name))
        assert (answer.status_code in {200, 204, 409, 422}) if allowed else answer.status_code == 403, answer.text

    def read_the_audit_log_of_an_element(self, choose: Choice) -> None:
        actor, name = choose.choice((*ADMINISTRATORS, *ACTORS)), choose.choice((*ELEMENTS, *SWITCHES))
        answer = self.call(actor, "GET", f"/v1/audit?element={name}&order=newest&limit=20")
        assert answer.status_code == (200 if administers(actor, site_of(name)) else 403), answer.text

    # Sites.

    def read_a_site(self, choose: Choice) -> None:
        actor, site = choose.choice(ACTORS), choose.choice(SITES)
        answer = self.call(actor, "GET", choose.choice((f"/v1/sites/{site}", "/v1/sites", "/v1/sites?limit=2")))
        allowed = actor.role not in {Role.AGENT, Role.JOB_STARTER}
        assert answer.status_code == (200 if allowed else 403), answer.text
        found = answer.json() if isinstance(answer.json(), list) else [answer.json()]
        assert not allowed or all(administers(actor, one["name"]) or not one["quarantine"] for one in found)

    def change_a_pool(self, choose: Choice) -> None:
        actor, site = choose.choice((*ADMINISTRATORS, *ADMINISTRATORS, *ACTORS)), choose.choice(SITES)
        path, body = f"/v1/sites/{site}/pool", {"vlans": choose.choice(POOLS)}
        former = self.send(self.tokens[OPERATOR], "GET", path)
        tag = choose.choice(("", former.headers["etag"], former.headers["etag"], '"0"'))
        answer = self.call(actor, "PUT", path, body, **({"if_match": tag} if tag else {}))
        allowed = administers(actor, site)
        assert (answer.status_code in {200, 409, 412, 422}) if allowed else answer.status_code == 403, answer.text
        if tag == '"0"' and allowed and answer.is_success:
            assert former.json() == body, answer.text
        if answer.is_success:
            self.repeat(actor, answer, "PUT", path, body)

    def clean_a_vlan(self, choose: Choice) -> None:
        actor, site = choose.choice((*ADMINISTRATORS, *ACTORS)), choose.choice(SITES)
        quarantined = choose(self.world.site(site).quarantine)
        vlan = 100 if quarantined is None else int(quarantined.vlan)
        answer = self.call(actor, "POST", f"/v1/sites/{site}/quarantine/{vlan}/clean", {"reason": "checked by hand"})
        allowed = administers(actor, site)
        assert (answer.status_code in {200, 404, 409}) if allowed else answer.status_code == 403, answer.text

    def change_the_topology(self, choose: Choice) -> None:
        """Change which users the second host of a site admits."""
        actor, site = choose.choice((*ADMINISTRATORS, *ADMINISTRATORS, *ACTORS)), choose.choice(SITES)
        path = f"/v1/sites/{site}/topology"
        former = self.send(self.tokens[OPERATOR], "GET", path)
        body = former.json()
        users = choose.choice(("all", ["alice"], []))
        body["site"]["hosts"][1]["admits"] = {"batch": True, "users": users}
        tag = choose.choice(("", former.headers["etag"], former.headers["etag"], '"0"'))
        answer = self.call(actor, "PUT", path, body, **({"if_match": tag} if tag else {}))
        allowed = administers(actor, site)
        assert (answer.status_code in {200, 409, 412, 428}) if allowed else answer.status_code == 403, answer.text

    # Jobs and time.

    def confirm_a_job(self, choose: Choice) -> None:
        actor, key, user = choose.choice((SCHEDULER, *ACTORS)), choose.choice(KEYS), choose.choice(USERS).name
        hosts = choose.sample(HOSTS, 3)
        answer = self.call(actor, "PUT", f"/v1/jobs/{key}", {"runs": True, "owner": user, "hosts": hosts})
        assert answer.status_code == (204 if actor in {OPERATOR, SCHEDULER} else 403), answer.text
        if answer.is_success:
            self.confirmed[key] = user, set(hosts)
        listed = self.call(actor, "GET", "/v1/jobs?server=torque&wait=0")
        assert listed.status_code == (200 if answer.is_success else 403), listed.text

    def elements_reconcile(self, choose: Choice) -> None:
        """Workers and agents reconcile all elements, except perhaps one host."""
        self.world.dead_hosts = set(choose.sample(HOSTS, choose.choice((0, 0, 1))))
        self.world.settle()
        self.refresh()

    def time_passes(self, choose: Choice) -> None:
        self.world.clock.advance(choose.choice((1.0, 61.0, 301.0, 3001.0)))
        self.world.sweep()
        self.refresh()
