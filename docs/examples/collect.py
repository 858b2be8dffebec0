"""Create a cluster, copy a program to all guests, run it everywhere at the same time, and collect the results.

Run: python collect.py KEY IMAGE FOLDER [PRIVATE_KEY]   (VIRTCLOUD_URL and VIRTCLOUD_TOKEN_FILE as for virtcloud)
The guests accept the keys that you added before: virtcloud key add. The results are in FOLDER/GUEST/result.txt.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from virtcloud import Client, SshOptions

PROGRAM = """#!/bin/sh
echo "$(hostname) computed $((6 * 7))" > result.txt
"""
if not sys.argv[3:]:
    sys.exit(__doc__)
key, image, folder, *identity = sys.argv[1:]
options = SshOptions(identity=identity[0] if identity else None)
spread = {"count": 3, "image": image, "memory_mb": 64}
with Client() as client, client.create(key, spread=spread) as cluster, TemporaryDirectory() as temporary:
    cluster.wait_active(progress=True, timeout=300)
    cluster.run("true", wait=120, check=True, options=options)  # guests may still boot
    program = Path(temporary) / "compute.sh"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    cluster.put(program, options=options)
    for name, result in cluster.run("./compute.sh", timeout=60, options=options).items():
        print(name, "failed:" if result.error else "exited with", result.error or result.returncode)
    for found in cluster.get("result.txt", folder, options=options).values():
        print((found / "result.txt").read_text().strip())
