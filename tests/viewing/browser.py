"""Debian's chromium, headless, driven by selenium: what a person would do with a page, as functions."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1500,950",
)


def missing() -> str:
    """What a browser test lacks here; empty where there is all."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium (pip install selenium)"
    names = {"chromium": "chromium", "chromedriver": "chromium-driver"}
    absent = [package for program, package in names.items() if shutil.which(program) is None]
    return f"{' and '.join(absent)} (apt-get install)" if absent else ""


@contextmanager
def browser() -> Iterator[Any]:
    """A browser with nothing of a user's."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="pipeline-browser-", ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


class Page:
    """A page of a program in the browser."""

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver = driver
        driver.get_log("browser")
        driver.get(path.as_uri())
        self.until("document.documentElement.dataset.ready !== undefined")

    def run(self, script: str, *args: Any) -> Any:
        """The result of JavaScript."""
        return self.driver.execute_script(f"return {script}", *args)

    def until(self, condition: str, seconds: float = 10) -> None:
        """Wait until something holds, as for a movement to end; where it never does, say what the console said."""
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, f"never: {condition}; the console: {self.errors}"
            time.sleep(0.05)

    @property
    def milliseconds(self) -> int:
        """From the beginning of the navigation until all was drawn."""
        return int(self.run("document.documentElement.dataset.ready"))

    @property
    def errors(self) -> list[str]:
        """What the console said."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    @property
    def details(self) -> str:
        """The text of the panel of details."""
        return str(self.run("document.getElementById('details').innerText"))

    @property
    def boxes(self) -> list[str]:
        """The accessible names of what is drawn."""
        return list(self.run("[...document.querySelectorAll('#graph .node')].map(n => n.getAttribute('aria-label'))"))

    @property
    def nameless(self) -> list[str]:
        """What can be clicked and has no accessible name."""
        return list(
            self.run(
                "[...document.querySelectorAll('button, select, input, [role=button], [role=treeitem], [role=option]')]"
                ".filter(e => !(e.getAttribute('aria-label') || e.textContent || e.title).trim()).map(e => e.outerHTML)"
            )
        )

    def click(self, selector: str) -> None:
        """A click where the middle of the element is."""
        self.driver.find_element("css selector", selector).click()

    def box(self, label: str) -> Any:
        """The box whose accessible name begins so."""
        return self.driver.find_element("css selector", f'#graph .node[aria-label^="{label}"]')

    def press(self, *keys: str) -> None:
        """Keys, where the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def search(self, text: str) -> list[str]:
        """What the search finds for a text, typed after the key that begins a search."""
        self.run("document.activeElement.blur()")
        self.press("/")  # what was searched before is selected, and typed over
        self.press(text)
        return list(self.run("[...document.querySelectorAll('#found [role=option]')].map(e => e.innerText)"))


def opened(driver: Any, path: Path, times: int = 3) -> tuple[Page, int]:
    """A page opened a few times, and the milliseconds of the fastest: what else runs on the machine only adds."""
    pages = [(page, page.milliseconds) for page in (Page(driver, path) for _ in range(times))]
    return pages[-1][0], min(milliseconds for _, milliseconds in pages)
