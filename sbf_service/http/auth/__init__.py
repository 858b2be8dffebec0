"""Authentication of calls, and authorization of the actions that they request."""
