"""The actions of `test_rights_machine` about VPN and SSH access, images, keys, quotas and tokens."""

import httpx
from stateful.rights_machine import IMAGES, KEYS, ClusterActions
from stateful.rights_model import (
    ACTORS,
    ADMINISTRATORS,
    OPERATOR,
    SCHEDULER,
    USERS,
    Actor,
    count_usage,
    is_owner,
    reads,
)
from support.sbf_fakes.topology_changes import Choice
from support.sbf_fakes.vpn_world import CSR

from virtcloud.client.gateway_logins import make_login_key
from virtcloud.model.access import Role
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.views import ClusterView

PUBLIC_KEY = make_login_key().public
FINGERPRINT = PUBLIC_KEY.fingerprint
IMAGE = {"size": 1, "format": "tar", "architecture": "x86_64", "url": "https://example.org/a.tar"}
SITES = ("brno", "praha", "plzen")


class AccessActions(ClusterActions):
    """Access of users to clusters from outside, and what belongs to users."""

    # VPN access.

    def is_invited(self, actor: Actor, view: ClusterView | None) -> bool:
        return view is not None and actor.is_user and (view.id, actor.name) in self.invited

    def may_have_lost_invitation(self, actor: Actor, view: ClusterView | None) -> bool:
        """Return whether an invitation may have ended, because its cluster ends or has ended."""
        return view is not None and self.is_invited(actor, view) and view.state not in WANTED_STATES

    def invite(self, choose: Choice) -> None:
        actor, key = self.choose_pair(choose)
        self.invite_user(actor, key, choose.choice(USERS).name, choose.choice(("PUT", "PUT", "DELETE")))

    def invite_user(self, actor: Actor, key: str, user: str, method: str) -> None:
        view, rest = self.newest(key), f"/vpn/invitations/{user}"
        answer = self.on_cluster(actor, method, key, rest, right="own")
        if answer is not None and answer.is_success and view is not None:
            (self.invited.add if method == "PUT" else self.invited.discard)((view.id, user))
            if method == "DELETE":  # the answer lists the profiles that the call revoked
                answer = self.call(actor, method, f"/v1/clusters/{key}{rest}")
            self.repeat(actor, answer, method, f"/v1/clusters/{key}{rest}")

    def make_a_profile(self, choose: Choice) -> None:
        self.make_device(*self.choose_pair(choose))

    def make_device(self, actor: Actor, key: str) -> None:
        view, device = self.newest(key), f"dv{next(self.numbers)}z"
        body = {"device": device, "csr": CSR}
        if self.may_have_lost_invitation(actor, view):
            return
        if self.is_invited(actor, view):
            answer = self.call(actor, "POST", f"/v1/clusters/{key}/vpn/profiles", body)
            assert answer.status_code in {201, 409}, answer.text
        else:
            made = self.on_cluster(actor, "POST", key, "/vpn/profiles", body, right="own")
            if made is None:
                return
            answer = made
        if answer.is_success and view is not None:
            self.devices[device] = view.id, actor.name

    def read_vpn_access(self, choose: Choice) -> None:
        actor, key = self.choose_pair(choose)
        rest = choose.choice(
            ("/vpn/profiles?revoked=true", "/vpn/invitations", "/vpn/connections", "/ssh/certificates")
        )
        view = self.newest(key)
        if self.may_have_lost_invitation(actor, view):
            return
        if view is None or not self.is_invited(actor, view):
            self.on_cluster(actor, "GET", key, rest, right="vpn")
            return
        answer = self.call(actor, "GET", f"/v1/clusters/{key}{rest}")
        assert view.spec.owner == actor.name or all(one["user"] == actor.name for one in answer.json())

    def on_vpn(self, actor: Actor, method: str, key: str, rest: str, body: object = None) -> httpx.Response | None:
        """Make a call about access. An invited user may make it only about the user's own access."""
        view = self.newest(key)
        if not self.is_invited(actor, view):
            return self.on_cluster(actor, method, key, rest, body, right="vpn")
        return self.call(actor, method, f"/v1/clusters/{key}{rest}", body)

    def revoke_a_profile(self, choose: Choice) -> None:
        actor, key = self.choose_pair(choose)
        view = self.newest(key)
        with_profiles = view is not None and view.state in WANTED_STATES
        profiles = self.as_operator(f"/v1/clusters/{key}/vpn/profiles?revoked=true") if with_profiles else []
        profile = choose(profiles)
        if profile is None or view is None:
            return
        self.use_profile(actor, view, profile, choose.choice(("GET", "DELETE")))

    def use_profile(self, actor: Actor, view: ClusterView, profile: dict[str, str], method: str) -> None:
        """Read or revoke a profile. An invited user may do so only with the user's own profiles."""
        rest = f"/vpn/profiles/{profile['id']}"
        answer = self.on_vpn(actor, method, view.key, rest)
        if answer is None:
            return
        limited = self.is_invited(actor, view) and not is_owner(actor, view) and profile["user"] != actor.name
        assert limited == (not answer.is_success), answer.text
        if answer.is_success and method == "DELETE":
            assert answer.json()["revoked_at"] is not None
            self.repeat(actor, answer, method, f"/v1/clusters/{view.key}{rest}")

    def make_a_certificate(self, choose: Choice) -> None:
        """Owners and invited users get certificates, and nobody else, not even an operator."""
        actor, key = self.choose_pair(choose)
        view, path = self.newest(key), f"/v1/clusters/{key}/ssh/certificates"
        if self.may_have_lost_invitation(actor, view):
            return
        allowed = view is not None and (is_owner(actor, view) or self.is_invited(actor, view))
        answer = self.call(actor, "POST", path, {"public_key": PUBLIC_KEY})
        assert (answer.status_code in {201, 409}) if allowed else not answer.is_success, answer.text
        if answer.status_code == 201 and choose.random() < 0.5:
            other = self.choose_pair(choose)[0]
            rest = f"/ssh/certificates/{answer.json()['serial']}"
            self.on_vpn(other, "DELETE", key, rest)

    def publish_a_guest(self, choose: Choice) -> None:
        actor, key = self.choose_pair(choose)
        view = self.newest(key)
        guest = view.spec.guests[0].name if view is not None and view.spec.guests else "g1"
        method, rest, body = choose.choice((
            ("GET", "/publications", None),
            ("POST", "/publications", {"guest": guest, "port": 22}),
            ("DELETE", f"/publications/{guest}/22", None),
        ))  # fmt: skip
        self.on_cluster(actor, method, key, rest, body, right="own")

    # What belongs to users.

    def change_keys(self, choose: Choice) -> None:
        actor, user = choose.choice((*USERS, *USERS, *ACTORS)), choose.choice(USERS).name
        allowed, path = actor == OPERATOR or (actor.is_user and actor.name == user), f"/v1/users/{user}/keys"
        if choose.random() < 0.5:
            method, body = "POST", {"key": f"{PUBLIC_KEY} kc{user}z"}
        else:
            method, body = choose.choice(("GET", "DELETE")), None
            path += f"/{FINGERPRINT}" if method == "DELETE" else ""
        answer = self.call(actor, method, path, body)
        assert (answer.status_code != 403) == allowed, answer.text
        if answer.is_success and method == "POST":
            self.repeat(actor, answer, method, path, body)

    def visible_images(self, actor: Actor) -> set[str]:
        """Return the images that the caller may see, without those that an agent needs."""
        images = self.as_operator("/v1/images")
        if actor.role in {Role.OPERATOR, Role.SITE_ADMINISTRATOR}:
            return {image["name"] for image in images}
        users = {image["name"]: {image["owner"], *image["shared_with"]} for image in images if not image["everybody"]}
        everybody = {image["name"] for image in images if image["everybody"]}
        return (
            everybody | {name for name, allowed in users.items() if actor.name in allowed} if actor.is_user else set()
        )

    def list_images(self, choose: Choice) -> None:
        actor = choose.choice((*USERS, *ACTORS))
        answer, expected = self.call(actor, "GET", "/v1/images"), self.visible_images(actor)
        if actor.role in {Role.SCHEDULER, Role.JOB_STARTER}:
            assert answer.status_code == 403, answer.text
            return
        found = {image["name"] for image in answer.json()}
        if actor.role is Role.AGENT:
            expected = found & {guest.image for view in self.views if reads(actor, view) for guest in view.spec.guests}
        assert found == expected, f"{actor}: {found}, expected {expected}"

    def add_an_image(self, choose: Choice) -> None:
        actor, name = choose.choice((*USERS, *USERS, *ACTORS)), choose.choice(IMAGES)
        body = IMAGE | {"sha256": f"{choose.choice((1, 2))}" * 64}
        answer = self.call(actor, "PUT", f"/v1/images/{name}", body)
        allowed = actor.role in {Role.USER, Role.OPERATOR, Role.SITE_ADMINISTRATOR}
        taken = allowed and "not-admitted" in answer.text
        assert taken or answer.status_code in ({200, 201, 409} if allowed else {403}), answer.text
        if answer.is_success:
            assert answer.json()["owner"] == actor.name
            self.repeat(actor, answer, "PUT", f"/v1/images/{name}", body)

    def change_an_image(self, choose: Choice) -> None:
        """Share or remove an image. Users who may not see the image get the answer about an unknown image."""
        actor, name, user = choose.choice((*USERS, *USERS, *ACTORS)), choose.choice(IMAGES), choose.choice(USERS).name
        image = next((one for one in self.as_operator("/v1/images") if one["name"] == name), None)
        visible = image is not None and name in self.visible_images(actor)
        owned = image is not None and (actor == OPERATOR or (visible and image["owner"] == actor.name))
        shares = choose.choice(({"add": [user]}, {"remove": [user]}, {"everybody": True}, {"everybody": False}))
        method, path, body = choose.choice((
            ("POST", f"/v1/images/{name}/shares", shares),
            ("POST", f"/v1/images/{name}/shares", shares),
            ("DELETE", f"/v1/images/{name}", None),
        ))  # fmt: skip
        answer = self.call(actor, method, path, body)
        if owned:
            assert answer.is_success or answer.status_code == 409, answer.text
        elif actor.role in {Role.USER, Role.SITE_ADMINISTRATOR, Role.OPERATOR}:
            assert answer.status_code == (403 if visible else 404), f"{actor} {path} {visible} {answer.text}"
        else:
            assert answer.status_code == 403, answer.text
        if answer.is_success and method == "POST":
            self.repeat(actor, answer, method, path, body)

    def certify_an_image(self, choose: Choice) -> None:
        actor, name, site = choose.choice((*ADMINISTRATORS, *ACTORS)), choose.choice(IMAGES), choose.choice(SITES)
        method, path = choose.choice(("PUT", "PUT", "DELETE")), f"/v1/images/{name}/certifications/{site}"
        answer = self.call(actor, method, path)
        allowed = actor == OPERATOR or (actor.role is Role.SITE_ADMINISTRATOR and site in actor.sites)
        assert (answer.status_code in {200, 404}) if allowed else answer.status_code == 403, answer.text
        if answer.is_success:
            self.repeat(actor, answer, method, path)

    # Quotas and tokens.

    def set_a_quota(self, choose: Choice) -> None:
        actor, user = choose.choice((OPERATOR, OPERATOR, *ACTORS)), choose.choice(USERS).name
        body = choose.choice(({}, {"clusters": 2}, {"guests": 3, "networks": 1}, {"memory_mb": 600}))
        answer = self.call(actor, "PUT", f"/v1/quotas/{user}", body)
        assert answer.status_code == (200 if actor == OPERATOR else 403), answer.text
        if answer.is_success:
            self.repeat(actor, answer, "PUT", f"/v1/quotas/{user}", body)

    def read_a_quota(self, choose: Choice) -> None:
        actor, user = choose.choice((*USERS, *ACTORS)), choose.choice(USERS).name
        answer = self.call(actor, "GET", f"/v1/quotas/{user}")
        allowed = actor in {OPERATOR, SCHEDULER} or (actor.is_user and actor.name == user)
        assert answer.status_code == (200 if allowed else 403), answer.text

    def quotas_agree_with_the_clusters(self) -> None:
        if self.counted == self.version:
            return
        self.counted = self.version
        for user in USERS:
            quota, usage = self.as_operator(f"/v1/quotas/{user.name}"), count_usage(self.views, user.name)
            assert {name: quota[name] for name in usage} == usage

    def replace_a_token(self, choose: Choice) -> None:
        """Replace a caller's token, and revoke the former token. Only the operator may create a token."""
        actor, former = choose.choice(ACTORS), self.tokens
        wanted = {"name": actor.name, "role": actor.role, "sites": actor.sites, "expires_in_s": 10**7}
        asker = choose.choice((OPERATOR, OPERATOR, *ACTORS))
        answer = self.call(asker, "POST", "/v1/tokens", wanted)
        assert answer.status_code == (201 if asker == OPERATOR else 403), answer.text
        if not answer.is_success:
            return
        old, self.tokens = former[actor], self.tokens | {actor: answer.json()["token"]}
        revoked = self.call(OPERATOR, "DELETE", f"/v1/tokens/{old.split('_')[1]}")
        assert revoked.status_code == 200, revoked.text
        self.repeat(OPERATOR, revoked, "DELETE", f"/v1/tokens/{old.split('_')[1]}")
        self.dead.append(old)

    def use_a_dead_token(self, choose: Choice) -> None:
        token = choose(self.dead)
        if token is None:
            return
        path = choose.choice(("/v1/whoami", "/v1/clusters", f"/v1/clusters/{choose.choice(KEYS)}"))
        answer = self.send(token, choose.choice(("GET", "DELETE", "PUT")), path, {})
        assert answer.status_code == 401, answer.text
        assert self.changed_tables() == []
