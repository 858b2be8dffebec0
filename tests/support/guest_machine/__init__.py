"""A host with guests for the stateful tests of its agent."""
