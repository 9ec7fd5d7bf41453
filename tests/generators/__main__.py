"""`python -m tests.generators [LANGUAGE ...]`: generate the clients, compile them, and let them publish and read.

Needs Java, and Node.js or Go for their languages; the generator comes from Maven's index, once.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.support.client_node import Node
from tests.support.javascript import javascript_folder
from tests.support.paths import ROOT

VERSION: Final = "7.25.0"
JAR: Final = ROOT / ".cache" / f"openapi-generator-cli-{VERSION}.jar"
_PLACE: Final = "org/openapitools/openapi-generator-cli"
ADDRESS: Final = f"https://repo1.maven.org/maven2/{_PLACE}/{VERSION}/openapi-generator-cli-{VERSION}.jar"
GENERATORS: Final = {"python": "python", "typescript": "typescript-fetch", "go": "go"}

PYTHON: Final = """
import sys
import openapi_client as client

api = client.ApiClient(client.Configuration(host=sys.argv[1]))
events = client.EventsApi(api)
place = events.publish("python", client.EventBody(payload={"n": 7}, key="k")).actual_instance
page = events.read_events("python", limit=10)
try:
    client.TopicsApi(api).show_topic("none")
except client.ApiException as error:
    print(place.offset, page.events[0].payload["n"], error.status)
"""

TYPESCRIPT: Final = """
import { Configuration, EventsApi, ResponseError, TopicsApi } from "./index.js";

const configuration = new Configuration({ basePath: process.argv[2] });
const events = new EventsApi(configuration);
const place = await events.publish({ topic: "typescript", eventBody: { payload: { n: 7 }, key: "k" } });
const page = await events.readEvents({ topic: "typescript", limit: 10 });
try {
  await new TopicsApi(configuration).showTopic({ topic: "none" });
} catch (error) {
  if (error instanceof ResponseError) {
    console.log("offset" in place ? place.offset : 0, (page.events[0].payload as any).n, error.response.status);
  }
}
"""

GO: Final = """
package main

import (
	"context"
	"fmt"
	"os"

	openapi "github.com/GIT_USER_ID/GIT_REPO_ID"
)

func main() {
	configuration := openapi.NewConfiguration()
	configuration.Servers = openapi.ServerConfigurations{{URL: os.Args[1]}}
	client, ctx := openapi.NewAPIClient(configuration), context.Background()
	body := *openapi.NewEventBody(map[string]interface{}{"n": 7})
	place, _, err := client.EventsAPI.Publish(ctx, "go").EventBody(body).Execute()
	if err != nil {
		panic(err)
	}
	page, _, err := client.EventsAPI.ReadEvents(ctx, "go").Limit(10).Execute()
	if err != nil {
		panic(err)
	}
	_, refused, _ := client.TopicsAPI.ShowTopic(ctx, "none").Execute()
	payload := page.Events[0].Payload.(map[string]interface{})
	fmt.Println(place.Published.Offset, payload["n"], refused.StatusCode)
}
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(each) for each in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def generate(language: str, url: str, folder: Path) -> None:
    extension = ["--additional-properties", "importFileExtension=.js"] if language == "typescript" else []
    source = ["-i", f"{url}/openapi.json", "-o", folder]
    run("java", "-jar", JAR, "generate", "-g", GENERATORS[language], *source, *extension, cwd=folder)


def use_python(folder: Path, url: str) -> str:
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=folder)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "-r", "requirements.txt", cwd=folder)
    (folder / "program.py").write_text(PYTHON)
    return run(python, "program.py", url, cwd=folder)


def use_typescript(folder: Path, url: str) -> str:
    (folder / "program.ts").write_text(TYPESCRIPT)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "globals.d.ts").write_text("declare const process: { argv: string[] };")
    tsc = javascript_folder() / "node_modules" / ".bin" / "tsc"
    options = ("--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom", "--types", "", "--outDir", "out")
    run(tsc, *options, "--strict", "program.ts", "globals.d.ts", cwd=folder)
    return run("node", "out/program.js", url, cwd=folder)


def use_go(folder: Path, url: str) -> str:
    shutil.rmtree(folder / "test", ignore_errors=True)
    (folder / "program").mkdir()
    (folder / "program" / "main.go").write_text(GO)
    run("go", "mod", "tidy", cwd=folder)
    return run("go", "run", "./program", url, cwd=folder)


USES: Final[dict[str, Callable[[Path, str], str]]] = {
    "python": use_python,
    "typescript": use_typescript,
    "go": use_go,
}


def main(languages: Sequence[str]) -> int:
    """The exit code: not 0 where a client is not what it should be."""
    if not JAR.exists():
        JAR.parent.mkdir(exist_ok=True)
        urllib.request.urlretrieve(ADDRESS, JAR)
    good = True
    with tempfile.TemporaryDirectory(prefix="ms-") as name, Node(folder=Path(name), engine="memory") as node:
        url = f"http://127.0.0.1:{node.port}"
        for language in languages or USES:
            folder = Path(name) / language
            folder.mkdir()
            generate(language, url, folder)
            said = USES[language](folder, url).split()
            print(f"{language}: {'published, read and refused' if said == ['1', '7', '404'] else said}", flush=True)
            good &= said == ["1", "7", "404"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
