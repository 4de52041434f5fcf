"""Single active consumers on RabbitMQ: the transport over its stream protocol."""
