"""The consumer group of KIP-848: its states, members, target, reconciliation and heartbeats."""
