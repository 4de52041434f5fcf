"""The RabbitMQ stream protocol on a socket: streams in memory, publishers, and single active consumers."""
