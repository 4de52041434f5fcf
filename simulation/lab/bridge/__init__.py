"""The same clients and the same faults under two protocols: how long nobody consumes."""
