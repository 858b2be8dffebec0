"""SBF: the service that owns sites, pools, clusters and claims, and converges switches and edges.

One request walks one way: ``http/clusters.py -> store (claim + revisions, one transaction) -> converge.py ->
drivers/<kind> -> store (confirm) -> http (long poll answers)``.
"""
