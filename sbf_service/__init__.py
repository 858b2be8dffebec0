"""SBF: the service that manages sites, pools, clusters and claims, and reconciles switches and provider edges.

The path of a request for a cluster: ``http/routes/clusters -> store (claim and revisions, one transaction) -> reconcile
-> drivers -> store (confirm) -> http (answer to the long poll)``.
"""
