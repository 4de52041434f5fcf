"""A proxy before real brokers that knows Kafka's protocol and disturbs it by rules."""
