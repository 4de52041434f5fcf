"""Applications of worker threads, as Kafka Streams has them: their machines, and the effects of failures."""
