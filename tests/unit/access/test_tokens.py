"""A token is shown once and kept as a hash; a line that is wrong is named without being repeated."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mainspring.bus.access.tokens import (
    BadToken,
    Scopes,
    TokenBook,
    TokenSource,
    lifetime_ms,
    new_token,
    parse_line,
    read_tokens,
)
from tests.support.access import make_token

SECRET = bytes(range(32))
NOW = 1_800_000_000_000


def test_a_token_is_found_by_its_text_and_by_nothing_else() -> None:
    text, token = new_token("alice", ["publish:orders.*"], SECRET)
    book = TokenBook([token, make_token("bob", "admin")[1]])
    found = book.find(text, NOW)
    assert found is token
    for wrong in ("", text[:-1], text + "x", text.upper(), token.digest.hex(), "ключ", "\ud83d", "x" * 100_000):
        assert book.find(wrong, NOW) is None


def test_the_line_says_everything_but_the_token() -> None:
    text, token = new_token("proc:alice", ["publish:orders.*", "subscribe:**"], SECRET, NOW)
    line = token.line()
    assert text not in line
    assert text.removeprefix("ms_") not in line
    read = parse_line(line, "here")
    assert (read.agent, read.digest, read.scopes.names, read.expires_ms) == (
        "proc:alice",
        token.digest,
        ("publish:orders.*", "subscribe:**"),
        NOW,
    )


def test_a_token_ends_in_the_moment_it_expires() -> None:
    text, token = new_token("alice", ["admin"], SECRET, NOW)
    book = TokenBook([token])
    assert book.find(text, NOW - 1) is token
    assert book.find(text, NOW) is None


def test_scopes_allow_what_they_name() -> None:
    scopes = Scopes(["publish:orders.*", "subscribe:**"])
    assert scopes.allow("publish", "orders.eu")
    assert not scopes.allow("publish", "orders")
    assert scopes.allow("subscribe", "anything")
    assert not scopes.admin
    assert Scopes(["admin"]).allow("publish", "anything")


@pytest.mark.parametrize("scope", ["pubish:orders", "publish", "publish:", "orders.*", "publish:ord*", "ADMIN", ""])
def test_a_scope_that_means_nothing_is_refused(scope: str) -> None:
    with pytest.raises(BadToken) as refused:
        new_token("alice", [scope], SECRET)
    assert refused.value.remedy


@pytest.mark.parametrize("agent", ["", "two words", "a,b", "a*", "x" * 256, "line\nbreak", 'qu"ote'])
def test_an_agent_that_could_not_stand_in_a_line_is_refused(agent: str) -> None:
    with pytest.raises(BadToken):
        new_token(agent, ["admin"], SECRET)


def test_a_weak_secret_and_a_token_for_nothing_are_refused() -> None:
    with pytest.raises(BadToken, match="random bytes"):
        new_token("alice", ["admin"], b"short")
    with pytest.raises(BadToken, match="nothing"):
        new_token("alice", [], SECRET)


@pytest.mark.parametrize(
    "line",
    [
        "ms_thisIsATokenByMistake admin",
        "alice ms_thisIsATokenByMistake admin",
        "alice " + "0" * 63 + " admin",
        "alice " + "0" * 64,
        "alice " + "0" * 64 + " nonsense",
        "alice " + "0" * 64 + " admin expires=tomorrow",
        "alice " + "0" * 64 + " admin expires=2027-01-01T00:00:00",
    ],
)
def test_a_wrong_line_is_named_by_its_place_and_not_repeated(line: str) -> None:
    with pytest.raises(BadToken) as refused:
        read_tokens([make_token("bob", "admin")[1].line(), line])
    assert "entry 2" in refused.value.message
    assert "ByMistake" not in str(refused.value)
    assert refused.value.remedy


def test_lines_may_stand_in_a_file_with_comments(tmp_path: Path) -> None:
    text, token = make_token("alice", "admin")
    file = tmp_path / "tokens"
    file.write_text(f"# who may\n\n{token.line()}\n")
    book = read_tokens([make_token("bob", "admin")[1].line()], str(file))
    assert len(book.tokens) == 2
    assert book.find(text, NOW) is not None
    file.write_text("nonsense\n")
    with pytest.raises(BadToken, match="line 1"):
        read_tokens([], str(file))
    with pytest.raises(BadToken, match="cannot read"):
        read_tokens([], str(tmp_path / "missing"))


def test_a_file_that_changes_is_read_again_and_one_that_is_broken_changes_nothing(tmp_path: Path) -> None:
    (alice, one), (bob, two) = make_token("alice", "admin"), make_token("bob", "admin")
    file = tmp_path / "tokens"
    file.write_text(one.line())
    source = TokenSource([], str(file))
    kept = source.book.find(alice, NOW)
    assert kept is not None
    source.refresh()
    assert source.book.find(alice, NOW) is kept, "nothing changed, nothing is made anew"
    file.write_text(f"{one.line()}\n{two.line()}")
    source.refresh()
    assert source.book.find(alice, NOW) is kept
    assert source.book.find(bob, NOW) is not None
    file.write_text("this is no line")
    source.refresh()
    assert source.book.find(bob, NOW) is not None
    file.unlink()
    source.refresh()
    assert source.book.find(bob, NOW) is not None
    assert not kept.revoked.is_set()
    file.write_text(two.line())
    source.refresh()
    assert source.book.find(alice, NOW) is None
    assert kept.revoked.is_set()


def test_lifetimes_have_units() -> None:
    assert (lifetime_ms("90m"), lifetime_ms("30d"), lifetime_ms("2w")) == (5_400_000, 2_592_000_000, 1_209_600_000)
    for wrong in ("30", "d", "-1d", "0d", "1y", "1.5h"):
        with pytest.raises(BadToken):
            lifetime_ms(wrong)


def test_nothing_is_logged_about_a_token(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        text, token = new_token("alice", ["admin"], SECRET)
        TokenBook([token]).find(text, NOW)
    assert not caplog.records
