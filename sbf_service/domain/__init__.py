"""PURE. The rules of the service, such as allocation, lifecycle, paths, wanted states, idempotency and rights."""
