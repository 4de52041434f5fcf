"""The client for requests to brokers, over a blocking socket or on asyncio's loop."""
