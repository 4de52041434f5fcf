"""The members of a group: pure state machines, and the asyncio drivers that run them."""
