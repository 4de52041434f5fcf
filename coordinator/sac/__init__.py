"""Single active consumers of streams: one consumer of a group gets messages, the others wait (RabbitMQ)."""
