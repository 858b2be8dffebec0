"""Fakes for tests of the service: devices in memory, and a service whose clock the test advances."""
