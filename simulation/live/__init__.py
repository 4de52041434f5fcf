"""Traces as they grow: rows in a Kafka topic, or Kafka's own group log, followed by Structured Streaming."""
