"""Committed offsets of groups of every kind: commit, fetch, delete and expiry."""
