"""Tools that need real brokers, or that judge our own code."""
