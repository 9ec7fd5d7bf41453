"""Kernels of several nodes on one log, under virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring.builtin import kernel_capabilities
from mainspring.cluster import About
from mainspring.kernel import Capability, Context, Fail, Handler, Kernel, handler_from
from mainspring.message import counted_ids
from tests.support.cluster import Member, World


class KernelNode:
    """One node with a kernel. `handlers` are (kind, type, function); `durable` makes a capability of its own."""

    def __init__(self, world: World, name: str, handlers: list[Handler], durable: list[Handler]) -> None:
        self.name = name
        self.member = Member(world, name)
        world.members.append(self.member)
        self._handlers, self._durable = handlers, durable

    async def start(self) -> KernelNode:
        await self.member.start()
        self.kernel = Kernel(
            loop=self.member.loop,
            ids=counted_ids(),
            log=self.member.log,
            cluster=self.member.cluster,
        )
        self.kernel.register(*kernel_capabilities(self.kernel))
        if self._handlers:
            self.kernel.register(Capability(id=f"{self.name}-work", handlers=self._handlers))
        if self._durable:
            self.kernel.register(Capability(id=f"{self.name}-durable", handlers=self._durable, durable=True))
        await self.kernel.start()
        told = [each for each in (*self._handlers, *self._durable) if each.kind != "event" or each.everywhere]
        serves = tuple(f"{each.kind}:{each.type}" for each in told)
        self.member.about = About(f"http://{self.name}", "1.0", serves)
        self.member.cluster.announce()
        return self

    def ask(self, kind: str, type: str, data: Any = None, **options: Any) -> asyncio.Future[Any]:
        return self.kernel.ask(kind, type, data, **options)

    async def stop(self) -> None:
        self.member.about = About()
        await self.kernel.drain(1_000)
        await self.kernel.stop()
        await self.member.leave()

    async def kill(self) -> None:
        self.member.kill()
        self.kernel._terminate_all()


async def kernel_node(world: World, name: str, *handlers: Handler, durable: tuple[Handler, ...] = ()) -> KernelNode:
    return await KernelNode(world, name, list(handlers), list(durable)).start()


def named(kind: Any, type: str, name: str) -> Handler:
    """A handler that says which node it is on."""

    def handle(data: Any, ctx: Context) -> dict[str, Any]:
        return {"by": name, "got": data}

    return handler_from(kind, type, handle)


def refusing(type: str) -> Handler:
    def handle(data: Any, ctx: Context) -> None:
        raise Fail(409, "sold out", remedy="come back tomorrow")

    return handler_from("command", type, handle)


class Gate:
    """A handler that waits until it is let go, and counts how often it began."""

    def __init__(self, type: str, kind: Any = "command") -> None:
        self.began = 0
        self.open = asyncio.Event()
        self.handler = handler_from(kind, type, self._handle)

    async def _handle(self, data: Any, ctx: Context) -> str:
        self.began += 1
        await self.open.wait()
        return "through"
