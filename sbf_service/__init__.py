"""SBF: the service that manages sites, pools, clusters and claims, and reconciles switches and provider edges.

A request for a cluster passes through these packages: ``http/routes/clusters -> store (claim and revisions, one
transaction) -> reconcile -> drivers -> store (confirm) -> http (answer to the long poll)``.
"""
