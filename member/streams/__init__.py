"""Applications of worker threads, as Kafka Streams has them: their machines, and what failures lead to."""
