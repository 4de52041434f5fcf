"""The one client that asks brokers for things, over a blocking socket or on asyncio's loop."""
