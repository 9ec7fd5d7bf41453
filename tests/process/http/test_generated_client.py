"""A client that openapi-python-client makes of the node's own OpenAPI document publishes and reads.

`make generators` does the same with openapi-generator for Python, TypeScript and Go.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.client_node import Node
from tests.support.generators import generator_folder

PROGRAM = """
import importlib, json, pkgutil, sys
import generated
from generated import Client
from generated.api.events import publish, read_events
from generated.api.groups import list_groups
from generated.api.messages import send_message
from generated.api.topics import list_topics, put_topic, show_topic
from generated.models import EventBody, MessageBody, MessageBodyKind, ProblemDocument, TopicBody

modules = [each.name for each in pkgutil.walk_packages(generated.__path__, "generated.")]
for name in modules:
    importlib.import_module(name)
client = Client(base_url=sys.argv[1])
made = put_topic.sync(client=client, body=TopicBody(topic="a/b", partitions=2))
places = [publish.sync(topic="a/b", client=client, body=EventBody(payload={"n": n}, key="k")) for n in (1, 2)]
page = read_events.sync(topic="a/b", client=client, limit=10)
nothing = show_topic.sync(topic="none", client=client)
reply = send_message.sync(client=client, body=MessageBody(kind=MessageBodyKind.QUERY, type_="Syscall.Attention"))
print(json.dumps({
    "partitions": made.partitions,
    "offsets": [each.offset for each in places],
    "payloads": [event.payload["n"] for event in page.events],
    "topics": "a/b" in [each.topic for each in list_topics.sync(client=client).topics],
    "groups": list_groups.sync(client=client).groups,
    "refused": [type(nothing).__name__, nothing.code],
    "reply": reply.kind,
}))
"""


def test_a_generated_client_publishes_and_reads(tmp_path: Path) -> None:
    tools = generator_folder() / "bin"
    with Node(folder=tmp_path, engine="memory") as node:
        url = f"http://127.0.0.1:{node.port}"
        command = [tools / "openapi-python-client", "generate", "--url", f"{url}/openapi.json", "--meta", "none"]
        made = subprocess.run(
            [*command, "--output-path", tmp_path / "generated"], capture_output=True, text=True, check=True
        )
        # The only thing it cannot take is a body of lines; publishing takes JSON too.
        assert made.stderr.count("WARNING parsing") == 1
        assert "Unsupported content type application/x-ndjson" in made.stderr
        (tmp_path / "program.py").write_text(PROGRAM)
        done = subprocess.run(
            [tools / "python", "program.py", url], cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "partitions": 2,
        "offsets": [1, 2],
        "payloads": [1, 2],
        "topics": True,
        "groups": [],
        "refused": ["ProblemDocument", "unknown_topic"],
        "reply": "reply",
    }
