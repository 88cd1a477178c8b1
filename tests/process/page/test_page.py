"""The page in a browser, fed with what a router would send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from .chromium import Browser, Tab
from .feeder import Feeder

TEXT = "document.getElementById('{}').innerText"


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        await asyncio.wait_for(work(), 300)

    asyncio.run(all_of_it())


@asynccontextmanager
async def looking(browser: Browser, feeder: Feeder) -> AsyncIterator[Tab]:
    """A tab with the page open, which in the end has had nothing to complain of."""
    async with feeder.serving() as url, browser.tab() as tab:
        await tab.size(1440, 900)
        await tab.open(url)
        yield tab
        assert tab.problems == []


def rows(table: str) -> str:
    return f"[...document.querySelectorAll('#{table}-table tbody tr')]"


def test_fleet_and_decisions_are_shown_and_change(browser: Browser) -> None:
    async def work() -> None:
        feeder = Feeder(3, past=30)
        async with looking(browser, feeder) as tab:
            await tab.until(f"{rows('engines')}.length === 3")
            first = await tab.evaluate(f"{rows('engines')}.map(row => row.innerText)")
            assert "10.0.0.10:8000" in first[0]
            assert "live" in first[0]
            await tab.evaluate(f"window.first = {rows('engines')}[0]")
            await tab.until(f"{rows('decisions')}.length > 2")
            await tab.until(f"{rows('engines')}[0].innerText !== {first[0]!r}")
            assert await tab.evaluate(f"window.first === {rows('engines')}[0]"), "rows are made anew"
            feeder.state["engines"]["10.0.0.11:8000/0"]["state"] = "gap"
            feeder.add("10.9.9.9:8000")
            await tab.reload()
            await tab.until(f"{rows('engines')}.length === 4 && {rows('engines')}[1].innerText.includes('gap')")
            await tab.until(f"{TEXT.format('status')}.includes('Live')")

    run(work)


def test_what_engines_say_is_text(browser: Browser) -> None:
    async def work() -> None:
        feeder = Feeder(1)
        name = "<img src=x onerror=\"document.title='owned'\">"
        feeder.add(name)
        feeder.state["engines"][f"{name}/0"]["error"] = "<b>bold</b>"
        async with looking(browser, feeder) as tab:
            await tab.until(f"{rows('engines')}.length === 2")
            assert name in await tab.evaluate(TEXT.format("engines-table"))
            assert await tab.evaluate("document.querySelectorAll('img, td b').length") == 0
            await tab.evaluate(f"{rows('engines')}.find(row => row.key.startsWith('<')).click()")
            await tab.until("document.getElementById('drawer-body').innerText.includes('<b>bold</b>')")

    run(work)


def test_every_engine_is_down(browser: Browser) -> None:
    async def work() -> None:
        feeder = Feeder(2)
        for row in feeder.state["engines"].values():
            row |= {"up": "down", "condition": {"name": "down", "reason": "GET /health returns status 503"}}
        async with looking(browser, feeder) as tab:
            await tab.until("document.body.classList.contains('emergency')")
            told = "Every engine is down: GET /health returns status 503"
            await tab.until(f"{TEXT.format('status')}.includes({told!r})")
            next(iter(feeder.state["engines"].values()))["up"] = "up"
            await tab.reload()
            await tab.until("document.querySelectorAll('#engines-table tbody tr').length === 2")
            assert not await tab.evaluate("document.body.classList.contains('emergency')")

    run(work)


def test_nothing_yet(browser: Browser) -> None:
    async def work() -> None:
        async with looking(browser, Feeder(0)) as tab:
            await tab.until("document.body?.innerText.includes('No engines yet')")
            await tab.until("document.body?.innerText.includes('No requests yet')")

    run(work)


def test_a_lost_connection_is_said_and_made_again(browser: Browser) -> None:
    async def work() -> None:
        feeder = Feeder(2)
        async with looking(browser, feeder) as tab:
            await tab.until(f"{rows('engines')}.length === 2")
            assert feeder.runner
            await feeder.runner.cleanup()
            await tab.until("document.getElementById('notice').innerText.startsWith('Connection lost')")
            await tab.until(f"{TEXT.format('status')}.includes('Not connected')")
            assert await tab.evaluate(f"{rows('engines')}.length") == 2, "what was known stays"
            feeder.add("10.9.9.9:8000")
            async with feeder.serving(feeder.port):
                await tab.until(f"{rows('engines')}.length === 3")
                await tab.until("document.getElementById('notice').hidden")
            tab.problems.clear()

    run(work)


def test_a_silent_server_is_a_lost_connection(browser: Browser) -> None:
    async def work() -> None:
        feeder = Feeder(1)
        async with looking(browser, feeder) as tab:
            await tab.until(f"{rows('engines')}.length === 1")
            feeder.is_silent = True
            await tab.until("document.getElementById('notice').innerText.includes('said nothing')")
            feeder.is_silent = False
            await tab.until("document.getElementById('notice').hidden")
            assert feeder.wholes >= 2

    run(work)


def test_the_key_is_asked_for_and_kept_in_the_tab(browser: Browser) -> None:
    async def work() -> None:
        feeder = Feeder(1, key="right")
        async with looking(browser, feeder) as tab:
            for key in ("wrong", "right"):
                await tab.until("document.getElementById('key').open")
                assert await tab.evaluate("document.activeElement.id") == "key-value"
                await tab.write(key)
                await tab.key("Enter")
                await tab.until("!document.getElementById('key').open || sessionStorage.length === 0")
            await tab.until(f"{rows('engines')}.length === 1")
            assert "right" not in await tab.evaluate("location.href + JSON.stringify(localStorage) + document.cookie")
            await tab.reload()
            await tab.until(f"{rows('engines')}.length === 1")

    run(work)


def test_keyboard(browser: Browser) -> None:
    async def work() -> None:
        feeder = Feeder(5)
        async with looking(browser, feeder) as tab:
            await tab.until(f"{rows('engines')}.length === 5 && {rows('decisions')}.length > 1")
            at = f"{rows('engines')}.indexOf(document.activeElement)"
            for key, row in (("j", 0), ("j", 1), ("j", 2), ("k", 1), ("ArrowDown", 2)):
                await tab.key(key)
                assert await tab.evaluate(at) == row, key
            await tab.key("Enter")
            await tab.until("document.getElementById('drawer').open")
            assert await tab.evaluate(TEXT.format("drawer-title")) == "10.0.0.12:8000"
            await tab.key("j")
            await tab.until(f"{TEXT.format('drawer-title')} === '10.0.0.13:8000'")
            await tab.key("Escape")
            await tab.until("!document.getElementById('drawer').open")
            # The focus goes back to the row that was open last.
            await tab.until(f"{at} === 3")
            await tab.key("/")
            await tab.write("0.14")
            await tab.until(f"{rows('engines')}.length === 1")
            await tab.key("Escape")
            await tab.key("?")
            await tab.until("document.getElementById('help').open")
            await tab.key("Escape")
            await tab.key("t")
            assert await tab.evaluate("document.documentElement.dataset.theme") == "light"
            # One row of a table can be reached by Tab.
            assert await tab.evaluate("document.querySelectorAll('#decisions-table tr[tabindex=\"0\"]').length") == 1

    run(work)


def test_a_decision_opens_with_every_candidate(browser: Browser) -> None:
    async def work() -> None:
        feeder = Feeder(6)
        async with looking(browser, feeder) as tab:
            await tab.until(f"{rows('decisions')}.length > 1")
            await tab.key("p")
            await tab.key("d")
            number = await tab.evaluate("document.activeElement.key")
            await tab.key("Enter")
            await tab.until("document.querySelectorAll('.candidates tbody tr').length === 6")
            decision = next(one for one in feeder.lists["decisions"] if one["number"] == int(number))
            shown = await tab.evaluate("document.querySelector('.candidates .chosen').innerText")
            assert decision["worker"] in shown
            heads = await tab.evaluate("[...document.querySelectorAll('.candidates th')].map(head => head.innerText)")
            assert {"wait", "prefill", "pushed out", "cost"} <= set(heads)
            costs = await tab.evaluate(
                "[...document.querySelectorAll('.candidates .stack svg')].map(bar => bar.childElementCount)"
            )
            assert costs == [3] * 6

    run(work)


def test_a_prompt_can_be_explained(browser: Browser) -> None:
    async def work() -> None:
        async with looking(browser, Feeder(4)) as tab:
            await tab.until(f"{rows('engines')}.length === 4")
            await tab.key("e")
            await tab.until("document.getElementById('explain').open")
            await tab.evaluate("document.querySelector('#explain-form button').click()")
            await tab.until("document.getElementById('explain-error').innerText === 'the prompt is empty'")
            await tab.write("Once upon a time")
            await tab.evaluate("document.querySelector('#explain-form button').click()")
            await tab.until("document.querySelectorAll('.candidates tbody tr').length === 4")

    run(work)


@pytest.mark.parametrize(("width", "height"), [(360, 740), (768, 1024), (1440, 900), (3840, 2160)])
def test_nothing_is_wider_than_the_window(browser: Browser, width: int, height: int) -> None:
    async def work() -> None:
        feeder = Feeder(12, past=60)
        feeder.state["engines"]["10.0.0.12:8000/0"].update(state="stale", trusted=False, error="no answer " * 40)
        async with looking(browser, feeder) as tab:
            await tab.size(width, height)
            await tab.until(f"{rows('engines')}.length === 12 && {rows('decisions')}.length > 1")
            assert await tab.evaluate("document.documentElement.scrollWidth") <= width
            parts = "[...document.querySelectorAll('.figure, .chart, button, h2')]"
            inside = f"{parts}.filter(part => part.offsetParent && !part.closest('.scroll'))"
            right = await tab.evaluate(f"Math.max(...{inside}.map(part => part.getBoundingClientRect().right))")
            assert right <= width
            await tab.evaluate(f"{rows('decisions')}[0].click()")
            await tab.until("document.querySelectorAll('.candidates tbody tr').length === 12")
            assert await tab.evaluate("document.documentElement.scrollWidth") <= width

    run(work)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser: Browser, scheme: str) -> None:
    """Every colour of text against the page: a contrast of at least 4.5, as WCAG's level AA has it."""
    contrast = """
      (() => {
        const style = getComputedStyle(document.documentElement);
        const hex = (name) => style.getPropertyValue('--' + name).trim().slice(1).match(/../g);
        const parts = (name) => hex(name).map((part) => parseInt(part, 16) / 255);
        const light = (name) => {
          const [r, g, b] = parts(name).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
          return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
        };
        const against = (a, b) => Math.max(light(a), light(b)) / Math.min(light(a), light(b));
        return ['ink', 'soft', 'bad', 'busy', 'one'].flatMap((text) =>
          ['ground', 'raised', 'hover'].map((ground) => [text, ground, against(text, ground)]));
      })()
    """

    async def work() -> None:
        async with looking(browser, Feeder(1)) as tab:
            await tab.scheme(scheme)
            await tab.until(f"{rows('engines')}.length === 1")
            for text, ground, ratio in await tab.evaluate(contrast):
                assert ratio >= 4.5, (text, ground)

    run(work)
