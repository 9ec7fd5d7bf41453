"""A clinic whose results nobody reads without a key: not the disk, not the wire, not the dashboard.

    python examples/encrypted_clinic.py

    desk ──command Result.Send──> node ──> topic results ──> consumer notify ──> run call_patient ──> topic calls

The program gives its node a codec (`App(codec=...)`): AES-256-GCM with a ring of keys. Everything the program stores or
sends is encoded before it leaves the program: the command and its reply, the event, the arguments and the journal of
the run. Whoever looks without the codec sees `{"$encoded": ..., "key": "2026-10"}`: which key, and nothing else.

The command above serves it on a node of its own, shows both views, and changes the key on the way. It needs the package
`cryptography`.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mainspring import App, Event, Perform, Publish, connect
from mainspring.testing import serving

NONCE_BYTES = 12


class KeyRing:
    """A codec with several keys: encodes with the current one, decodes with whichever was used.

    Keys come from wherever the program keeps secrets; fetch them before the node starts.
    """

    def __init__(self, keys: dict[str, bytes], current: str) -> None:
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}
        self.key_id = current

    def encode(self, data: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._ciphers[self.key_id].encrypt(nonce, data, self.key_id.encode())

    def decode(self, data: bytes, key_id: str) -> bytes:
        return self._ciphers[key_id].decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], key_id.encode())

    def rotate(self, name: str, key: bytes) -> None:
        """Encode with a new key from now on. The old ones stay: what they encoded is still read."""
        self._ciphers[name] = AESGCM(key)
        self.key_id = name


keys = KeyRing({"2026-10": AESGCM.generate_key(256)}, current="2026-10")
app = App("clinic", codec=keys)


class Result(msgspec.Struct):
    patient: str
    finding: str


@app.command("Result.Send")
async def send(result: Result, ctx: Any) -> str:
    """The laboratory has a result."""
    await ctx.publish("results", result, key=result.patient)
    return f"{result.patient} will be called"


@app.consumer("results")
async def notify(event: Event[Result]) -> None:
    event.start_run(call_patient, event.payload.patient, event.payload.finding, id=f"call/{event.id}")


@app.run
async def call_patient(patient: str, finding: str, perform: Perform) -> str:
    await perform(Publish("calls", {"patient": patient, "say": f"your result: {finding}"}))
    return f"{patient} knows"


async def main() -> None:
    async with serving(app) as node, connect(node.url, codec=keys) as desk, connect(node.url) as stranger:
        calls = desk.subscribe("calls", group="desk")
        print(await desk.command("Result.Send", Result("Ada", "all is well")))
        print("the desk reads:", (await calls.get()).payload["say"])
        async for event in stranger.replay("results"):
            print("a stranger reads:", {**event.payload, "$encoded": "..."})
        keys.rotate("2026-11", AESGCM.generate_key(256))
        await desk.command("Result.Send", Result("Bob", "come again"))
        print("the desk reads:", (await calls.get()).payload["say"])
        print("both keys:", [event.payload["key"] async for event in stranger.replay("results")])
        print("both results:", [event.payload["patient"] async for event in desk.replay("results")])


if __name__ == "__main__":
    asyncio.run(main())
