"""The inhabitants of a Kafka world: broker hosts with a coordinator, member hosts with a driver and an
application."""
