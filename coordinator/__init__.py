"""The group coordinator: protocol vocabulary, groups, assignors, journal, and the Kafka endpoint."""
