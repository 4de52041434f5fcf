"""Scenarios on real brokers, in real time: the same plans, the same checkers, the same trace."""
