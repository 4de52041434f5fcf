"""The same clients and the same faults under two protocols, and the time without a consumer."""
