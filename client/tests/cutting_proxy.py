"""A loopback proxy that cuts each connection after a random number of bytes, in a request or in a response."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator


class CuttingProxy:
    def __init__(self, target: int, most: int, seed: int) -> None:
        """Forwards to the port `target`. Each connection carries at most `most` bytes, counting both directions."""
        self.cut_in_requests = 0
        self.cut_in_responses = 0
        self.port = 0
        self._target = target
        self._most = most
        self._random = random.Random(seed)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            to_client.transport.abort()
            return
        left = self._random.randint(0, self._most)

        async def relay(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> bool:
            """Forwards one direction. Returns whether it was cut."""
            nonlocal left
            while data := await source.read(65536):
                sink.write(data[:left])
                await sink.drain()
                left -= len(data)
                if left < 0:
                    return True
            return False

        directions = [asyncio.create_task(relay(client, to_server)), asyncio.create_task(relay(server, to_client))]
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        cuts = [task.done() and not task.exception() and task.result() for task in directions]
        self.cut_in_requests += cuts[0]
        self.cut_in_responses += cuts[1]
        for task in directions:
            task.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        # Half of the connections are closed after all written data has been sent, and the others are reset.
        reset = self._random.random() < 0.5
        for sink in (to_client, to_server):
            if reset:
                sink.transport.abort()
            else:
                sink.close()

    @contextlib.contextmanager
    def running(self) -> Iterator["CuttingProxy"]:
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(server.close)
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
