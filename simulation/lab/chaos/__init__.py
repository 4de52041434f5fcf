"""Scenarios on real brokers, in real time: the same plans, the same judges, the same trace."""
