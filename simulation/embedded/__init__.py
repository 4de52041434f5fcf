"""Kafka and RabbitMQ streams inside a test process: real clients join, and the test drives their groups."""
