"""Scenarios: what a world consists of, how it is used, and what disturbs it."""
