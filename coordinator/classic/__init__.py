"""Classic groups: members join in rounds, and one of them assigns (Kafka before KIP-848)."""
