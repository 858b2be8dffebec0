"""Create a cluster on hosts that SBF chooses, print its changes, and delete it.

Run: python watch.py KEY [IMAGE]   (VIRTCLOUD_URL and VIRTCLOUD_TOKEN_FILE as for the command virtcloud)
"""

import sys

from virtcloud import Client

if not sys.argv[1:]:
    sys.exit(__doc__)
key, image = sys.argv[1], (sys.argv[2:] or ["busybox"])[0]
spread = {"count": 3, "image": image, "memory_mb": 32}
with Client() as client, client.create(key, spread=spread) as cluster:
    for event in cluster.events(timeout=300):
        print(event)
        if cluster.state == "active":
            break
    cluster.wait_active(timeout=300)
    for guest in cluster.view.spec.guests:
        print(guest.name, guest.host, *guest.addresses)
