"""SBF: the service that owns sites, pools, clusters and claims, and reconciles switches and edges.

The path of a request: ``http/routes/clusters -> store (claim + revisions, one transaction) -> reconcile -> drivers ->
store (confirm) -> http (long poll answers)``.
"""
