"""Tokens: a secret that says who its bearer is and what it may do.

A token is shown once, when it is made. What a node keeps is a line with its SHA-256, so reading the settings reveals no
token. A plain fast hash is enough, because a token is 32 random bytes: there is nothing to guess, and the
slow hashes made for passwords would only make every request slow. A token is found by the first bytes of its hash and
then compared in constant time, so the time of a refusal says nothing about how close a guess came.

    alice 9f86d081...(64 digits) publish:orders.* subscribe:** expires=2027-01-31T00:00:00Z

A line is words with spaces between: the agent, the hash, scopes, and optionally when it ends. A scope is `admin`, or a
kind of right and a pattern of names (`KINDS`). Lines stand in the setting `tokens`, or in a file.

    billing cert:DNS=billing.example.com subscribe:orders.paid

A line with `cert:` in place of the hash is for a client that shows a certificate with this name, signed by
an authority that the setting `tls_client_ca` names. Both kinds are called tokens here: they say who, and what it may
do.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from mainspring.bus.access.patterns import NameSet
from mainspring.bus.errors import BadFrame
from mainspring.errors import SettingError

logger: logging.Logger = logging.getLogger("mainspring.bus.access")

PREFIX: Final = "ms_"
SECRET_BYTES: Final = 32
SHOWN_DIGITS: Final = 8  # of the hash: names a token for people without saying anything about it
ADMIN: Final = "admin"
# What a right is about: topics, groups of topics, types of messages, programs of runs.
KINDS: Final = ("publish", "subscribe", "group", "query", "command", "run")
MEMORY: Final = 4_096  # topics a set of scopes remembers its answer for

_HASH: Final = re.compile(r"[0-9a-f]{64}")
_AGENT: Final = re.compile(r"[^\s,*;\"'\x00-\x1f\x7f]{1,255}")
# Of certificates: which fields of subject and subjectAltName count, and how a line calls them.
_NAMES: Final = {"commonName": "CN", "DNS": "DNS", "URI": "URI", "email": "EMAIL", "IP Address": "IP"}
_CERTIFICATE: Final = re.compile(rf"cert:(?:{'|'.join(_NAMES.values())})=[^\s,]{{1,255}}")
_ANY_CASE: Final = frozenset(("DNS", "EMAIL"))
_LIFETIME: Final = re.compile(r"(\d{1,6})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class BadToken(SettingError, code="bad_token"):
    """A line of the tokens, or a part of one, cannot be understood."""


class Scopes:
    """What a token may do. Remembers its answers, because the same few names are asked about again and again."""

    def __init__(self, names: Iterable[str]) -> None:
        """Raises BadToken."""
        self.names: tuple[str, ...] = tuple(dict.fromkeys(names))
        self.admin: bool = ADMIN in self.names
        given: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for name in self.names:
            kind, colon, pattern = name.partition(":")
            if name == ADMIN:
                continue
            if kind not in given or not colon:
                raise BadToken(
                    f"{name[:100]!r} is not a scope",
                    remedy=f"scopes are admin, and {', '.join(KINDS)} with a pattern, like subscribe:orders.*",
                )
            given[kind].append(pattern)
        try:
            self._patterns = {kind: NameSet(tuple(patterns)) for kind, patterns in given.items()}
        except BadFrame as error:
            raise BadToken(error.message, remedy=error.remedy) from None
        self.allow: Callable[[str, str], bool] = lru_cache(MEMORY)(self._allow)
        """Whether an action on what has this name is within the scopes."""

    def _allow(self, action: str, name: str) -> bool:
        return self.admin or name in self._patterns[action]

    def any_of(self, *kinds: str) -> bool:
        """Whether there is a scope of one of these kinds."""
        return self.admin or any(self._patterns[kind] for kind in kinds)

    def __str__(self) -> str:
        return " ".join(self.names)


@dataclass(slots=True, eq=False)
class Token:
    """One line, read. `revoked` is set when the line is gone: connections made with this token must end then.

    `certificate` is the name in a line for a certificate, like `DNS=billing.example.com`; such a line has no digest.
    """

    agent: str
    digest: bytes
    scopes: Scopes
    expires_ms: int = 0
    certificate: str = ""
    revoked: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> str:
        """How people name the token."""
        return self.certificate or self.digest.hex()[:SHOWN_DIGITS]

    def expired(self, wall_ms: int) -> bool:
        return 0 < self.expires_ms <= wall_ms

    def line(self) -> str:
        """What the settings hold."""
        proof = f"cert:{self.certificate}" if self.certificate else self.digest.hex()
        words = [self.agent, proof, *self.scopes.names]
        if self.expires_ms:
            words.append(f"expires={moment_text(self.expires_ms)}")
        return " ".join(words)


def new_token(agent: str, scopes: Iterable[str], secret: bytes, expires_ms: int = 0) -> tuple[str, Token]:
    """A token's text, to be shown once, and what is kept of it. `secret` is 32 bytes of real randomness."""
    if len(secret) < SECRET_BYTES:
        raise BadToken(f"a token needs {SECRET_BYTES} random bytes", remedy="take them from the secrets module")
    text = PREFIX + base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
    return text, Token(agent, _digest(text), _rights(agent, scopes), expires_ms)


def certificate_token(agent: str, scopes: Iterable[str], certificate: str, expires_ms: int = 0) -> Token:
    """What is kept of a client that shows a certificate with this name: `DNS=billing.example.com`, `CN=billing`."""
    if not _CERTIFICATE.fullmatch(f"cert:{certificate}"):
        kinds = ", ".join(f"{kind}=" for kind in _NAMES.values())
        raise BadToken(f"{certificate[:100]!r} names no certificate", remedy=f"write one of {kinds} and the name")
    return Token(agent, b"", _rights(agent, scopes), expires_ms, _folded(certificate))


def _rights(agent: str, scopes: Iterable[str]) -> Scopes:
    if not _AGENT.fullmatch(agent):
        raise BadToken(f"{agent[:100]!r} cannot name an agent", remedy="use text without spaces, commas, quotes and *")
    rights = Scopes(scopes)
    if not rights.names:
        raise BadToken("a token without scopes may do nothing", remedy="give at least one, like subscribe:**")
    return rights


def certificate_names(peer: Mapping[str, Any]) -> set[str]:
    """The names in a certificate as Python's `ssl` gives it, the way lines write them."""
    found = [pair for part in peer.get("subject", ()) for pair in part if pair[0] == "commonName"]
    found += peer.get("subjectAltName", ())
    return {_folded(f"{_NAMES[kind]}={name}") for kind, name in found if kind in _NAMES}


def _folded(name: str) -> str:
    kind, _, value = name.partition("=")
    return f"{kind}={value.lower()}" if kind in _ANY_CASE else name


def parse_line(line: str, where: str) -> Token:
    """Raises BadToken that names the place and never repeats the line: by mistake it may hold a token."""
    agent, *words = line.split()
    is_hash = bool(words) and _HASH.fullmatch(words[0]) is not None
    if not words or not (is_hash or _CERTIFICATE.fullmatch(words[0])) or not _AGENT.fullmatch(agent):
        raise BadToken(
            f"{where} is not a token's line: agent, the 64 digits of its hash (or cert:NAME), then scopes",
            remedy="`mainspring token new` makes the line",
        )
    expires_ms = 0
    names = []
    for word in words[1:]:
        if word.startswith("expires="):
            expires_ms = parse_moment(word.removeprefix("expires="), where)
        else:
            names.append(word)
    if not names:
        raise BadToken(f"{where} has no scopes", remedy="add at least one, like subscribe:**")
    try:
        if not is_hash:
            return certificate_token(agent, names, words[0].removeprefix("cert:"), expires_ms)
        return Token(agent, bytes.fromhex(words[0]), Scopes(names), expires_ms)
    except BadToken as error:
        raise BadToken(f"{where}: {error.message}", remedy=error.remedy) from None


class TokenBook:
    """Every token a node accepts."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.tokens: tuple[Token, ...] = tuple(tokens)
        self._by_start: dict[bytes, list[Token]] = {}
        for token in self.tokens:
            if not token.certificate:
                self._by_start.setdefault(token.digest[:8], []).append(token)

    def __bool__(self) -> bool:
        return bool(self.tokens)

    def find_certificate(self, names: Collection[str], wall_ms: int) -> Token | None:
        """The first line that is for a certificate with one of these names, unless it has expired."""
        lines = (token for token in self.tokens if token.certificate in names)
        return next((token for token in lines if not token.expired(wall_ms)), None)

    def find(self, text: str, wall_ms: int) -> Token | None:
        """The token this text is, unless it has expired."""
        digest = _digest(text)
        found = None
        for token in self._by_start.get(digest[:8], ()):
            if hmac.compare_digest(token.digest, digest) and not token.expired(wall_ms):
                found = token
        return found


class TokenSource:
    """The tokens of the settings, and of a file that may change while the node runs.

    A line that is taken out of the file ends what its token holds open; a new one is accepted from then on. A file that
    cannot be read or understood changes nothing and is reported, once. `on_change` is called with the lines that came
    and those that went.
    """

    def __init__(self, lines: Iterable[str], file: str = "", *, certificates: bool = False) -> None:
        """`certificates`: clients may show one, also while no line is for one. Raises BadToken."""
        self._lines = tuple(lines)
        self._file = file
        self._certificates = certificates
        self._seen = self._signature()
        self.book: TokenBook = read_tokens(self._lines, file)
        self.on_change: Callable[[Sequence[Token], Sequence[Token]], object] = lambda _new, _gone: None

    @property
    def is_required(self) -> bool:
        """Whether everybody needs a token: as soon as there is a place for one, however many there are."""
        return bool(self._lines or self._file or self._certificates)

    def scopes_of(self, agent: str, wall_ms: int) -> list[Scopes]:
        """The scopes of each token that the agent has now."""
        return [each.scopes for each in self.book.tokens if each.agent == agent and not each.expired(wall_ms)]

    @property
    def is_watched(self) -> bool:
        """Whether there is a file that may change."""
        return bool(self._file)

    def refresh(self) -> None:
        """Look at the file, and read it again if it is not the one of before."""
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        try:
            read = read_tokens(self._lines, self._file)
        except BadToken as error:
            logger.error("the tokens stay as they were: %s", error)
            return
        gone = {token.line(): token for token in self.book.tokens}
        new = [token for token in read.tokens if token.line() not in gone]
        kept = [gone.pop(token.line(), token) for token in read.tokens]
        self.book = TokenBook(kept)
        for token in gone.values():
            token.revoked.set()
        self.on_change(new, list(gone.values()))
        logger.info("%d tokens from now on, %d are no longer valid", len(kept), len(gone))

    def _signature(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._file)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def read_tokens(lines: Iterable[str], file: str = "") -> TokenBook:
    """Tokens of the settings, and of the file they name. Raises BadToken."""
    found = [parse_line(line, f"entry {number} of tokens") for number, line in enumerate(lines, 1) if line.strip()]
    if file:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise BadToken(f"cannot read the tokens in {file}: {reason}", remedy="check tokens_file") from None
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                found.append(parse_line(line, f"line {number} of {file}"))
    return TokenBook(found)


def lifetime_ms(text: str) -> int:
    """How long `30d`, `12h`, `2w` last. Raises BadToken."""
    match = _LIFETIME.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise BadToken(f"{text[:40]!r} is not a time", remedy="write a number and a unit: 90m, 12h, 30d, 8w")
    return int(match[1]) * _SECONDS[match[2]] * 1000


def parse_moment(text: str, where: str) -> int:
    """An RFC 3339 moment as epoch ms."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise BadToken(f"{where}: expires= is not a moment with its zone", remedy="write like 2027-01-31T00:00:00Z")
    return int(moment.timestamp() * 1000)


def moment_text(epoch_ms: int) -> str:
    """Epoch ms for people, to the second."""
    return datetime.fromtimestamp(epoch_ms // 1000, UTC).isoformat().replace("+00:00", "Z")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
