"""Failed runs: they are kept, replayed exactly, shrunk, and turned into tests."""
