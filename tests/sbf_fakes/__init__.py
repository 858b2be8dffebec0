"""Fakes for tests of the service: devices in memory, and a service whose clock advances only in steps of the test."""
