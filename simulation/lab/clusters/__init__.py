"""Real Kafka clusters for tests: nodes as JVM processes or in docker, with faults at their processes."""
