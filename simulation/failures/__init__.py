"""Failed runs, kept: replayed as they were, made small, and turned into tests."""
