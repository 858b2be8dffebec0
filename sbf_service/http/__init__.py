"""SBF's HTTP API: authentication, operations by resource, and problem documents (RFC 9457).

An operation checks the caller's right, calls the store or reads a device, and returns the answer.
"""
