"""A monitor of sensors: hears their heartbeats, notices who falls silent, and calls somebody when it stays so.

    python examples/sensor_monitor.py

    sensors ──WebSocket──> topic heartbeats ──> beats: /sensors/... ──> schedule watch ──> run outage ──> topic alarms

Nothing is kept in a variable, so a restart forgets nothing. When a sensor was heard last is state of the beats; a
schedule looks at it; an outage is a durable run whose id is made from the last heartbeat, so that each outage is
reported once, however often the schedule sees it. The run waits for the sensor to come back, for as long as it takes.

The command above serves it on a node of its own, with three sensors that are quick enough to watch. One of them dies.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec

from mainspring import App, Event, Fail, Perform, Publish, WaitEvent, WaitTimedOut, connect
from mainspring.client import Subscription
from mainspring.testing import serving

SENSORS = ("cellar", "hall", "roof")
HEARTBEAT_MS = 100
LATE_MS = 5 * HEARTBEAT_MS
PATIENCE_MS = 60_000  # then somebody has to go and look

app = App("monitor")
app.topic("heartbeats", retention="1d")
app.topic("alarms", retention="90d")


@app.schema("heartbeats")
class Heartbeat(msgspec.Struct, frozen=True):
    sensor: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]
    celsius: float


app.beats_from("heartbeats")


@app.enzyme("/topics/heartbeats", match="prefix")
def note(signal: str, target: str | None, stage: Any) -> None:
    """Each sensor has a place of its own; the last heartbeat of a beat stays."""
    heartbeat = stage.read(signal)
    stage.write(f"/sensors/{heartbeat['payload']['sensor']}", {"seen": heartbeat["ts"], **heartbeat["payload"]})


@app.every(HEARTBEAT_MS / 1000)
async def watch(event: Event[Any]) -> None:
    """Look into each sensor that was heard before and is late now."""
    for name in SENSORS:
        last = (await event.ask("query", "Beat.Read", {"path": f"/sensors/{name}"}))["value"]
        if last is not None and event.ts - last["seen"] > LATE_MS:
            event.start_run(outage, name, id=f"outage-{name}-{last['seen']}")


@app.run
async def outage(sensor: str, perform: Perform) -> str:
    """From the first doubt to the sensor's return."""
    # A node that was down has heard nobody, and a busy network is late: so listen for a while before saying anything.
    try:
        await perform(WaitEvent("heartbeats", {"sensor": sensor}, timeout=LATE_MS / 1000))
        return "it was only late"
    except WaitTimedOut:
        await perform(Publish("alarms", {"sensor": sensor, "text": "is silent"}, key=sensor))
    try:
        await perform(WaitEvent("heartbeats", {"sensor": sensor}, timeout=PATIENCE_MS / 1000))
    except WaitTimedOut:
        await perform(Publish("alarms", {"sensor": sensor, "text": "stays silent: somebody has to look"}, key=sensor))
        await perform(WaitEvent("heartbeats", {"sensor": sensor}))
    await perform(Publish("alarms", {"sensor": sensor, "text": "is back"}, key=sensor))
    return "it is back"


@app.query("Sensor.Read")
async def read(sensor: str, ctx: Any) -> dict[str, Any]:
    """What a sensor said last."""
    if sensor not in SENSORS:
        raise Fail(404, f"there is no sensor {sensor}", remedy=f"there are {', '.join(SENSORS)}")
    found: dict[str, Any] = await ctx.send("query", "Beat.Read", {"path": f"/sensors/{sensor}"})
    return found


# -- three sensors, for real


async def sensor(url: str, name: str, celsius: float) -> None:
    """Says again and again that it lives; any program with a WebSocket or HTTP can."""
    async with connect(url, drain_timeout=0) as bus:
        while True:
            await bus.publish("heartbeats", Heartbeat(name, celsius), key=name)
            await asyncio.sleep(HEARTBEAT_MS / 1000)


async def alarm_of(alarms: Subscription[Any], name: str) -> str:
    """The next alarm about this sensor."""
    while (event := await alarms.get()).key != name:
        await event.ack()
    return f"{name} {event.payload['text']}"


async def main() -> None:
    async with serving(app) as node, connect(node.url) as bus:
        heartbeats = bus.subscribe("heartbeats", group="desk", key="roof")
        alarms = bus.subscribe("alarms", group="desk")
        living = {name: asyncio.create_task(sensor(node.url, name, 20.5)) for name in SENSORS}
        await heartbeats.get()
        print("the sensors live; now the roof's battery is empty")
        living.pop("roof").cancel()
        print(await alarm_of(alarms, "roof"))
        print("the battery is changed")
        living["roof"] = asyncio.create_task(sensor(node.url, "roof", 18.0))
        print(await alarm_of(alarms, "roof"))
        for task in living.values():
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
