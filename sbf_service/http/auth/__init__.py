"""Authentication of calls, and authorization of what they ask for."""
