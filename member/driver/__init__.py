"""The asyncio shell of a member: carries requests, runs callbacks, keeps the time, decides nothing."""
