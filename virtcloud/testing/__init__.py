"""Test doubles for other projects: a fake PBS for tests of hooks. The product does not import this package."""
