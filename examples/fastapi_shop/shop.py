"""A shop in FastAPI: orders in PostgreSQL by SQLAlchemy, and what follows from them, in one process.

    DATABASE_URL=postgresql://shop@127.0.0.1/shop uvicorn shop:api --workers 3

A row and its event are one transaction, and a consumer's effect and its acknowledgement are one transaction. So each
order that was answered is billed exactly once, whatever process is killed whenever.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from mainspring import App, Event, Perform, WaitSignal
from mainspring.postgres import enqueue, publish, start_run
from mainspring.runs import Value

DATABASE = os.environ.get("DATABASE_URL", "postgresql://127.0.0.1/shop")
engine = create_async_engine(DATABASE.replace("postgresql://", "postgresql+asyncpg://", 1))
sessions = async_sessionmaker(engine)
shop = App("shop")


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """What was ordered."""

    __tablename__ = "orders"
    number: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]


class Bill(Base):
    """No key keeps a second bill for an order out: there is none."""

    __tablename__ = "bills"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[str]


# --- what follows from an order


@shop.consumer("orders", group="billing", transaction=True)
async def bill(event: Event[dict[str, str]]) -> None:
    await event.connection.execute("INSERT INTO bills (number) VALUES ($1)", event.payload["number"])
    number = event.payload["number"]
    await start_run(event.connection, delivery, number, id=f"delivery-{number}")  # in the same transaction


@shop.run
async def delivery(number: str, perform: Perform) -> str:
    """A workflow that waits for somebody: `POST /orders/{number}/delivered`."""
    return f"{number} was delivered to {await perform(WaitSignal('delivered'))}"


@shop.task
async def send_mail(to: str) -> None:
    print("mail to", to)


# --- the web side


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.execute(select(func.pg_advisory_xact_lock(7070)))  # of all workers one makes the tables
        await connection.run_sync(Base.metadata.create_all)
    async with shop.running(engine=DATABASE):
        yield
    await engine.dispose()


async def transaction() -> AsyncIterator[AsyncSession]:
    """One for each request: committed when the route has returned, rolled back when it raised."""
    async with sessions.begin() as session:
        yield session


Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]  # committed before the answer leaves
api = FastAPI(lifespan=lifespan)
api.mount("/mainspring", shop.asgi)


class NewOrder(BaseModel):
    """The body of a request."""

    number: str
    customer: str


@api.post("/orders", status_code=201)
async def post_order(order: NewOrder, session: Transaction) -> dict[str, int]:
    session.add(Order(number=order.number, customer=order.customer))
    await session.flush()
    await publish(session, "orders", {"number": order.number}, key=order.customer)
    await enqueue(session, send_mail, order.customer)
    return {"worker": os.getpid()}


@api.post("/orders/{number}/delivered")
async def delivered(number: str, to: str) -> dict[str, str]:
    run = f"delivery-{number}"
    if not await shop.signal(run, "delivered", to):
        raise HTTPException(409, "it was delivered already")
    outcome = await shop.outcome(run, delivery, timeout="30s")
    if not isinstance(outcome, Value):
        raise HTTPException(500, "the delivery failed")
    return {"delivery": outcome.value}


@api.get("/bills")
async def bills(session: Transaction) -> list[str]:
    return list(await session.scalars(select(Bill.number)))


@api.get("/orders/stream")
async def stream() -> StreamingResponse:
    """Server-sent events, from the beginning."""

    async def messages() -> AsyncIterator[bytes]:
        async for event in shop.follow("orders", since="beginning"):
            yield b"data: %b\n\n" % msgspec.json.encode(event.payload)

    return StreamingResponse(messages(), media_type="text/event-stream")
