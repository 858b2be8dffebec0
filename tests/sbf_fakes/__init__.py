"""Fakes for tests of the service: switches in memory, and a service whose clock stands until it is told to go on."""
