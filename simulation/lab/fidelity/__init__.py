"""A scenario simulated and on real brokers, side by side; and the latencies that the real run suggests."""
