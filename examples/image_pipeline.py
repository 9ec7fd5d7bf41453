"""Thumbnails and metadata in beats: two enzymes on one target, and their results one beat later.

    python examples/image_pipeline.py

Both names are bound to /env/fs/projects and everything below it, and both queries match the signal. `resize` is the
more specific one and runs first. What it writes in beat 1 can be read in beat 2, where the signal it emitted is worked
on: `catalogue`, bound to /data/assets, finds the thumbnail there.
"""

from __future__ import annotations

from mainspring.beats import BeatsProgram, Heartbeat, Stage

program = BeatsProgram()


@program.enzyme("/signals/image/thumbnail")
def resize(signal: str, target: str, stage: Stage) -> None:
    """Make a thumbnail, keep it in the content store, and ask for it to be catalogued."""
    name = target.rpartition("/")[2].partition(".")[0]
    thumbnail = stage.store({"image": target, "width": 128, "height": 96})
    stage.write(f"/data/assets/{name}/thumbnail", {"content": thumbnail})
    stage.signal("/signals/db/write", f"/data/assets/{name}/thumbnail")


@program.enzyme("/signals/image", match="prefix")
def metadata(signal: str, target: str, stage: Stage) -> None:
    """Note what is known about an image, whatever was asked for."""
    name = target.rpartition("/")[2].partition(".")[0]
    stage.write(f"/data/assets/{name}/metadata", {"path": target, "asked": signal})


@program.enzyme("/signals/db/write")
def catalogue(signal: str, target: str, stage: Stage) -> None:
    """Add to the catalogue what the beat before has made."""
    entry = stage.read(target)
    stage.write("/data/catalogue", {**(stage.read("/data/catalogue") or {}), target: stage.read(entry["content"])})


program.bind("/env/fs/projects", "resize")
program.bind("/env/fs/projects", "metadata")
program.bind("/data/assets", "catalogue")


def main() -> None:
    heartbeat = Heartbeat()
    program.install(heartbeat)
    heartbeat.signal("/signals/image/thumbnail", "/env/fs/projects/p1/img123.jpg")
    while heartbeat.waiting:
        report = heartbeat.beat()
        print(f"beat {report.beat}: {', '.join(entry.enzyme for entry in report.agenda)}")
        for change in report.staged:
            print(f"  {change.enzyme} wrote {change.path}")
    print(heartbeat.read("/data/catalogue"))


if __name__ == "__main__":
    main()
