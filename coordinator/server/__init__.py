"""The Kafka endpoint: sockets, the runner of a coordinator, and partition logs in memory."""
