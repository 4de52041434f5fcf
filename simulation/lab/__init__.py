"""What needs real brokers, or judges our own code."""
