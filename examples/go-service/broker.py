"""An embedded Kafka for tests in another language: it does what a line on standard input says.

It prints `ready HOST:PORT`, then one line for each command: `done`, or `failed` and why.
It ends with its standard input.
"""

import sys

from fencepost import EmbeddedKafka, FencepostError


def obey(kafka: EmbeddedKafka, command: str, group: str, client_id: str = "") -> None:
    """Do one of the failures that a test may ask for."""
    if command == "fence":
        kafka.group(group).fence(client_id)
    elif command == "move":
        kafka.move_coordinator(group)
    elif command == "stable":
        kafka.group(group).wait_stable(members=int(client_id))
    else:
        raise ValueError(f"unknown command {command!r}: expected fence, move or stable")


with EmbeddedKafka(topics={"orders": 3}, brokers=2) as kafka:
    print(f"ready {kafka.bootstrap_servers}", flush=True)
    for line in sys.stdin:
        try:
            obey(kafka, *line.split())
        except (FencepostError, AssertionError, TimeoutError, TypeError, ValueError) as error:
            print(f"failed {error}".replace("\n", " "), flush=True)
        else:
            print("done", flush=True)
