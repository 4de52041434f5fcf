"""How the leader of a classic group assigns: whole topics' partitions, or the tasks of Kafka Streams."""
