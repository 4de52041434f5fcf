"""Live traces: Structured Streaming follows rows in a Kafka topic, or Kafka's own group log."""
