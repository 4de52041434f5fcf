"""The global thread at work: a task that reads whole topics, before stream threads run and beside them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fencepost.member.streams.application.port import GlobalReader
from fencepost.member.streams.application.settings import Processing
from fencepost.member.streams.application.worker import is_cancelled

if TYPE_CHECKING:
    from fencepost.member.streams.application.driver import StreamsDriver


class GlobalWorker:
    """The one task of the global thread. It commits nothing: each start reads everything again."""

    def __init__(self, engine: StreamsDriver, processing: Processing, reader: GlobalReader) -> None:
        self.started: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        """Done once it has caught up, with the exception that kept it from it, or if it is to end first."""
        self._engine = engine
        self._processing = processing
        self._reader = reader
        self._stopping = False

    def stop(self) -> None:
        """End after what is being processed."""
        self._stopping = True

    async def run(self) -> None:
        """The whole life of the thread."""
        engine = self._engine
        error: BaseException | None = None
        try:
            await self._work()
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised
            engine.global_failed(raised, ask=self.started.done() and not is_cancelled(raised))
        finally:
            try:
                await self._reader.close()
            finally:
                engine.carry_out(engine.client.global_ended())
                if not self.started.done():
                    self.started.set_result(error)

    async def _work(self) -> None:
        await self._reader.start()
        while not self._stopping:
            for batch in await self._reader.poll():
                await self._processing.call(batch.partition, batch.records, None)
            if self._reader.caught_up and not self.started.done():
                self._engine.carry_out(self._engine.client.global_ready())
                self.started.set_result(None)
