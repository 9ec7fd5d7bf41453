"""A decorator without its parentheses declares nothing, so it must not look as if it did."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import App
from mainspring.kernel import CapabilityError


@pytest.mark.parametrize("name", ["command", "query", "on", "consumer", "every", "cron", "handles", "enzyme"])
def test_a_decorator_that_needs_an_argument_says_so(name: str) -> None:
    async def report(data: Any, ctx: Any) -> None: ...

    with pytest.raises(CapabilityError, match=f"@app.{name} above report") as caught:
        getattr(App("shop"), name)(report)
    assert caught.value.remedy.startswith(f"write @app.{name}(")
