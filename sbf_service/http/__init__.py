"""SBF's HTTP API: thin routes, one file per resource; errors are problem documents (RFC 9457).

A route calls the store and gives its answer; what is allowed and what follows is decided below it.
"""
