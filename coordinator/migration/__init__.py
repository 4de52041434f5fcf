"""Groups between the two protocols: classic groups become consumer groups and back (KIP-848, Migration)."""
