"""Test doubles for other projects: a fake PBS for tests of hooks. The product itself does not import this package."""
