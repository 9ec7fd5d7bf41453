"""Settings: where a value comes from, and what is said when it does not fit."""

from pathlib import Path

import pytest

from mainspring.errors import SettingError
from mainspring.settings import Settings, describe, load, without_secrets


def test_without_anything_every_value_is_the_default() -> None:
    loaded = load()
    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {"default"}
    assert set(loaded.sources) == {one.name for one in describe()}


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mainspring.toml"
    file.write_text('port = 1001\nhost = "127.0.0.2"\ndrain_ms = 7\n')
    environ = {"BUS_PORT": "1002", "MAINSPRING_HOST": "127.0.0.3"}
    loaded = load({"port": 1003, "host": None}, environ, file)
    assert (loaded.settings.port, loaded.sources["port"]) == (1003, "flag")
    assert (loaded.settings.host, loaded.sources["host"]) == ("127.0.0.3", "environment")
    assert (loaded.settings.drain_ms, loaded.sources["drain_ms"]) == (7, "file")
    assert loaded.sources["engine"] == "default"


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("port", "BUS_PORT"),
        ("url", "BUS_URL"),
        ("mongo_url", "MONGO_URL"),
        ("mongo_db", "MONGO_DB"),
        ("ack_timeout_ms", "BUS_ACK_TIMEOUT_MS"),
        ("max_inflight", "BUS_MAX_INFLIGHT"),
    ],
)
def test_the_names_of_the_source_are_aliases_which_our_own_names_beat(name: str, env: str) -> None:
    assert {one.name: one.alias for one in describe()}[name] == env
    own = f"MAINSPRING_{name.upper()}"
    assert getattr(load(environ={env: "11"}).settings, name) in (11, "11")
    for environ in ({own: "22", env: "11"}, {env: "11", own: "22"}):
        assert getattr(load(environ=environ).settings, name) in (22, "22")


def test_every_setting_has_its_own_name_in_the_environment() -> None:
    for one in describe():
        assert one.env == f"MAINSPRING_{one.name.upper()}"
        text = "x" if one.type in ("text", "list of text") else str(one.default)
        assert load(environ={one.env: text}).sources[one.name] == "environment", one.name


def test_every_setting_says_what_it_does_and_counts_in_a_unit_that_its_name_tells() -> None:
    for one in describe():
        assert one.help.endswith("."), one.name
        for suffix, unit in (("_ms", "ms"), ("_bytes", "bytes")):
            if one.name.endswith(suffix):
                assert one.unit == unit, one.name


def test_an_unknown_variable_is_refused_and_the_likely_one_named() -> None:
    with pytest.raises(SettingError, match="did you mean MAINSPRING_ENGINE"):
        load(environ={"MAINSPRING_ENGIN": "memory"})


def test_variables_of_other_programs_are_none_of_our_business() -> None:
    assert load(environ={"MAINSPRING": "x", "PATH": "/bin", "MAINSPRING_CONFIG": "x.toml"}).settings == Settings()


def test_an_unknown_name_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text("prot = 1\n")
    with pytest.raises(SettingError, match="did you mean port") as caught:
        load(file=file)
    assert str(file) in caught.value.message


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"BUS_PORT": "http"}, "not a whole number"),
        ({"BUS_PORT": "70000"}, "above 65535"),
        ({"BUS_PORT": "-1"}, "below 0"),
        ({"MAINSPRING_SLOW_TURN_MS": "0"}, "below 1"),
        ({"MAINSPRING_SLOW_TURN_MS": "1.5"}, "not a whole number"),
        ({"MAINSPRING_UVLOOP": "perhaps"}, "not true or false"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_remedy(environ: dict[str, str], says: str) -> None:
    with pytest.raises(SettingError, match=says) as caught:
        load(environ=environ)
    assert caught.value.remedy
    assert caught.value.code == "bad_setting"


@pytest.mark.parametrize("text", ["port = true\n", "port = 1.0\n", 'port = "1"\n', "host = 1\n", "port = \n", "\x00"])
def test_a_file_with_a_value_of_the_wrong_type_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "m.toml"
    file.write_text(text)
    with pytest.raises(SettingError):
        load(file=file)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot read"):
        load(file=tmp_path / "none.toml")


def test_an_empty_variable_means_not_set_for_numbers() -> None:
    assert load(environ={"BUS_PORT": ""}).sources["port"] == "default"


@pytest.mark.parametrize(("text", "value"), [("1", True), ("off", False), ("TRUE", True), ("no", False)])
def test_the_words_for_true_and_false(text: str, value: bool) -> None:
    assert load(environ={"MAINSPRING_UVLOOP": text}).settings.uvloop is value


def test_the_address_of_mongodb_is_the_engine_only_when_that_engine_is_named() -> None:
    environ = {"MONGO_URL": "mongodb://db:27017"}
    assert load(environ=environ).settings.engine == "sqlite"
    found = load({"engine": "mongodb"}, environ)
    assert (found.settings.engine, found.sources["engine"]) == ("mongodb://db:27017", "flag")
    assert load({"engine": "mongodb://other"}, environ).settings.engine == "mongodb://other"
    with pytest.raises(SettingError, match="has no address"):
        load({"engine": "mongodb"})


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("sqlite", "sqlite"),
        ("nats://u:secret@h:4222/log?replicas=3", "nats://h:4222/log?replicas=3"),
        ("nats://u:secret@a:1,b:2/log?token=secret&patience=2", "nats://a:1,b:2/log?patience=2"),
        ("nats://secret@h", "nats://h"),
        ("nats://h/log?token=secret", "nats://h/log"),
        ("mongodb://u:p%40secret@h/db?w=1", "mongodb://h/db?w=1"),
        ("ws://127.0.0.1:7070", "ws://127.0.0.1:7070"),
        ("postgresql://h/db?user=u&password=secret", "postgresql://h/db?user=u"),
        ("postgresql://h/db?sslPassword=secret&sslmode=require", "postgresql://h/db?sslmode=require"),
        ("postgresql://u:se/cr?e@t@h/db", "postgresql://h/db"),
        ("host=h password=secret", "host=h password="),
        ("nats:u:secret@h", "nats:h"),
        ("/srv/shop@1/data", "/srv/shop@1/data"),
        ("C:/srv/shop@1/data", "C:/srv/shop@1/data"),
    ],
)
def test_an_address_is_shown_without_its_secrets(address: str, shown: str) -> None:
    assert without_secrets(address) == shown
