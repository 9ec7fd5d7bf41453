"""`mainspring topics`, `groups`, `dlq`: looking at a node and changing what it keeps."""

from __future__ import annotations

from tests.support.terminal import Terminal, until


def dead_letters(terminal: Terminal, topic: str, count: int) -> None:
    """Let a group give up on `count` events: delivered once without an acknowledgement, with one attempt allowed."""
    terminal.ok("topics", "create", topic, "--max-attempts", "1")
    terminal.ok("pub", topic, '{"sku": 1}', "-n", str(count), "-k", "k", "-H", "x=1")
    terminal.json("sub", topic, "-g", "bad", "-n", str(count), "--no-ack")
    with terminal.running("sub", topic, "-g", "bad"):
        until(lambda: terminal.json("dlq", "list", topic), lambda found: len(found) == count)


def test_a_topic_is_created_shown_altered_and_listed(terminal: Terminal) -> None:
    made = terminal.json("topics", "create", "made", "--partitions", "2", "--retention", "7d", "--deny-publish", "bob")
    assert made == [{"topic": "made", "partitions": 2, "retentionMs": 604_800_000, "publishACL": {"deny": ["bob"]}}]
    ada = Terminal(f"{terminal.url}/?agent_id=ada")
    altered = ada.json("topics", "alter", "made", "--partitions", "4", "--allow-publish", "ada", "--compact")
    assert altered[0]["publishACL"] == {"allow": ["ada"], "deny": ["bob"]}
    assert (altered[0]["partitions"], altered[0]["retentionMs"], altered[0]["compact"]) == (4, 604_800_000, True)
    shown = terminal.ok("topics", "show", "made")
    assert "retentionMs      7d" in shown
    assert len([line for line in shown.splitlines() if line[:1].isdigit()]) == 4
    assert "newest of each key" in terminal.ok("topics", "list")


def test_creating_a_topic_twice_does_not_replace_its_settings(terminal: Terminal) -> None:
    terminal.ok("topics", "create", "twice", "--max-attempts", "7")
    first, second = terminal.fails("topics", "create", "twice")
    assert first == "mainspring: there is a topic 'twice' already"
    assert "alter" in second
    assert terminal.json("topics", "show", "twice")[0]["maxAttempts"] == 7


def test_partitions_do_not_shrink(terminal: Terminal) -> None:
    terminal.ok("topics", "create", "grown", "--partitions", "3")
    first, second = terminal.fails("topics", "alter", "grown", "--partitions", "2")
    assert "they only grow" in first
    assert second.strip()


def test_the_node_s_own_topics_are_shown_when_asked_for(terminal: Terminal) -> None:
    terminal.ok("pub", "heard", "1")
    own = until(lambda: [each["topic"] for each in terminal.json("topics", "list", "--all")], lambda t: len(t) > 1)
    assert any(name.startswith("system.") for name in own)
    assert not any(each["topic"].startswith("system.") for each in terminal.json("topics", "list"))


def test_json_has_the_names_of_http_and_every_moment_also_in_words(terminal: Terminal) -> None:
    terminal.ok("topics", "create", "named", "--retention", "1d")
    terminal.ok("pub", "named", stdin="1\n2\n")
    terminal.json("sub", "named", "-g", "behind", "-n", "1")
    (topic,) = terminal.json("topics", "list", "named")
    assert (topic["topic"], topic["retentionMs"], topic["events"]) == ("named", 86_400_000, 2)
    (group,) = until(lambda: terminal.json("groups", "list", "named"), lambda found: "oldest" in found[0])
    assert group["oldestTime"].endswith("Z")
    point = until(lambda: terminal.json("history"), bool)[-1]
    assert point["t"] > 0
    assert point["time"].startswith("20")
    (event,) = terminal.json("tail", "named", "-n", "1")
    assert event["time"].endswith("Z")


def test_groups_show_their_lag_move_and_are_deleted(terminal: Terminal) -> None:
    terminal.ok("pub", "lagging", stdin="".join(f"{number}\n" for number in range(10)))
    terminal.json("sub", "lagging", "-g", "slow", "-n", "4")
    (group,) = terminal.json("groups", "list", "lagging")
    assert (group["group"], group["lag"], group["members"]) == ("slow", 6, 0)
    assert "lag 6" in terminal.ok("groups", "show", "lagging", "slow")
    assert terminal.json("groups", "seek", "lagging", "slow", "--to", "latest")[0]["lag"] == 0
    assert terminal.json("groups", "list", "lagging", "--lagging") == []
    for place, first in (("3", 2), ("beginning", 0), ("1h", 0)):
        terminal.ok("groups", "seek", "lagging", "slow", "--to", place)
        assert terminal.json("sub", "lagging", "-g", "slow", "-n", "1")[0]["payload"] == first
    assert "deleted slow" in terminal.ok("groups", "delete", "lagging", "slow")
    assert terminal.json("groups", "list", "lagging") == []


def test_a_group_with_members_is_not_deleted(terminal: Terminal) -> None:
    terminal.ok("pub", "busy", "1")
    with terminal.running("sub", "busy", "-g", "g") as command:
        command.line()
        (member,) = terminal.json("groups", "members", "busy", "g")
        assert (member["program"], member["inflight"]) == (False, 0)
        assert member["sinceTime"].endswith("Z")
        assert "since" in terminal.ok("groups", "show", "busy", "g")
        first, second = terminal.fails("groups", "delete", "busy", "g")
        assert "member" in first
        assert second.strip()


def test_dead_letters_are_listed_shown_and_sent_again(terminal: Terminal) -> None:
    dead_letters(terminal, "deadly", 3)
    (topic,) = (each for each in terminal.json("dlq", "list") if each["topic"] == "deadly")
    assert topic["count"] == 3
    assert terminal.json("dlq", "list", "deadly", "--group", "other") == []
    (letter,) = terminal.json("dlq", "show", "deadly", "1")
    assert (letter["group"], letter["attempts"], letter["key"]) == ("bad", 1, "k")
    shown = terminal.ok("dlq", "show", "deadly", "1")
    assert "group      bad" in shown
    assert '"sku": 1' in shown
    assert terminal.json("dlq", "redrive", "deadly", "--limit", "1")[0]["count"] == 1
    (topic,) = (each for each in terminal.json("dlq", "list") if each["topic"] == "deadly")
    assert topic["count"] == 2
    assert "sent 1 dead letter of deadly to every group" in terminal.ok("dlq", "redrive", "deadly", "-n1", "--to-all")
    assert "sent 1 dead letter of deadly back" in terminal.ok("dlq", "redrive", "deadly", "--all")
    assert terminal.json("dlq", "list", "deadly") == []


def test_dead_letters_are_dropped(terminal: Terminal) -> None:
    dead_letters(terminal, "unwanted", 4)
    assert terminal.json("dlq", "drop", "unwanted", "--offset", "2", "--offset", "9")[0]["count"] == 1
    assert "dropped 1 dead letter of unwanted" in terminal.ok("dlq", "drop", "unwanted", "--group", "bad", "-n", "1")
    assert [each["offset"] for each in terminal.json("dlq", "list", "unwanted")] == [3, 4]
    done = terminal.run("dlq", "drop", "unwanted")
    assert (done.returncode, "--all" in done.stderr) == (2, True)
    assert "dropped 2 dead letters" in terminal.ok("dlq", "drop", "unwanted", "--all")
    assert terminal.json("dlq", "list", "unwanted") == []


def test_everything_is_sent_again_only_when_asked_for(terminal: Terminal) -> None:
    terminal.ok("pub", "calm", "1")
    done = terminal.run("dlq", "redrive", "calm")
    assert done.returncode == 2
    assert "--all" in done.stderr


def test_names_that_need_care_in_a_path_work_everywhere(terminal: Terminal) -> None:
    name, group = "a/b:c.é_東", "g/1:é"
    terminal.ok("pub", name, '"x"')
    assert terminal.json("sub", name, "-g", group, "-n", "1")[0]["topic"] == name
    assert terminal.json("groups", "show", name, group)[0]["group"] == group
    assert name in terminal.ok("topics", "list")
    assert terminal.json("tail", name)[0]["payload"] == "x"


def test_what_is_not_there_is_said_with_what_to_do(terminal: Terminal) -> None:
    for arguments in (
        ("topics", "show", "nix"),
        ("tail", "nix"),
        ("groups", "show", "nix", "g"),
        ("dlq", "show", "nix", "1"),
    ):
        first, second = terminal.fails(*arguments)
        assert first.startswith("mainspring: ")
        assert second.startswith("  ")


def test_schedules_are_listed_paused_resumed_run_and_deleted(terminal: Terminal) -> None:
    def data(name: str) -> str:
        return f'{{"name": "{name}", "topic": "{name}", "payload": 1, "cron": "0 3 * * *", "timezone": "Asia/Tokyo"}}'

    terminal.ok("send", "command", "Bus.Schedule", data("nightly"))
    assert "0 3 * * * Asia/Tokyo" in terminal.ok("schedules", "list")
    assert terminal.json("schedules", "pause", "nightly")[0]["paused"]
    assert "paused" in terminal.ok("schedules", "list")
    assert terminal.json("schedules", "run", "nightly")[0]["offset"] == 1
    (known,) = terminal.json("schedules", "list")
    assert known["lastMs"] > 0
    assert "resumed nightly; next at 20" in terminal.ok("schedules", "resume", "nightly")
    assert terminal.ok("schedules", "delete", "nightly", "--yes").strip() == "deleted nightly"
    first, _ = terminal.fails("schedules", "run", "nightly")
    assert "no schedule 'nightly'" in first
    terminal.ok("send", "command", "Bus.Schedule", data("app/shop/nightly"))
    assert "comes back when the program starts" in terminal.ok("schedules", "delete", "app/shop/nightly", "--yes")
