"""The bytes of the RabbitMQ stream protocol: frames as values, and chunks as osiris keeps them."""
