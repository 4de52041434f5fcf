"""Groups of Kafka Streams applications (KIP-1071): members of processes, and tasks instead of partitions."""
