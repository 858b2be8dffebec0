"""Machines and packages for tests of the installation."""
