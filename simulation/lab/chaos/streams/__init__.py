"""Streams applications on real brokers: clients in processes, disturbed as simulated ones are."""
