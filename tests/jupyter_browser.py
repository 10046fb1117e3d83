"""JupyterLab on a copy of the lab, and a headless Chromium that uses it as a student does."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from labs_common.notebooks import ROOT

COPIED = ("labs_common", "kernels", "notebooks", "data")
START_S, LOAD_S = 60, 60
# Neither a question about news nor cells that leave the page when they are out of sight.
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
}


def browser_missing() -> str | None:
    """What is not installed of Chromium and its driver, or None."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(missing)} here (Debian: chromium, chromium-driver)" if missing else None


class Lab:
    """A JupyterLab server on a copy of the lab, so that nothing in the checkout is written."""

    def __init__(self, folder: Path) -> None:
        """Copy the lab, start the server, wait until it answers.

        Raises:
            RuntimeError: it does not; the message ends with the server's log.
        """
        self.root = folder / "lab"
        for name in COPIED:
            shutil.copytree(
                ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__", "mine")
            )
        (self.root / "kernels" / "mine").mkdir()
        settings = folder / "settings"
        for name, content in SETTINGS.items():
            path = settings / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content), encoding="utf-8")
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),  # the copy, not the checkout
            "CUDA_VISIBLE_DEVICES": "-1",
            "JUPYTERLAB_SETTINGS_DIR": str(settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "IPYTHONDIR": str(folder / "ipython"),
        }
        self._token, self._port = secrets.token_hex(16), _free_port()
        self._log = folder / "server.log"
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--ServerApp.port={self._port}"]
        command += ["--ServerApp.port_retries=0", f"--IdentityProvider.token={self._token}"]
        command += [f"--ServerApp.root_dir={self.root}", "--ServerApp.ip=127.0.0.1"]
        command += ["--allow-root"] if hasattr(os, "getuid") and os.getuid() == 0 else []
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._wait()

    def url(self, notebook: str) -> str:
        """Address of a notebook."""
        return f"{self._base}/lab/tree/notebooks/{notebook}.ipynb?token={self._token}"

    @property
    def _base(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self._base}/api/status?token={self._token}", timeout=5):
                    return
            except OSError:
                time.sleep(0.3)
        log = self._log.read_text(encoding="utf-8", errors="replace")
        self.close()
        raise RuntimeError(f"JupyterLab did not start:\n{log[-3000:]}")

    def close(self) -> None:
        """Stop the server and its kernels."""
        if self._process.poll() is None:
            self._process.terminate()  # it shuts its kernels down
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Notebook:
    """A notebook open in the browser."""

    def __init__(self, url: str, pictures: Path) -> None:
        """Start Chromium and open a notebook.

        Args:
            url: of the notebook.
            pictures: folder for screenshots.
        """
        options = Options()
        options.binary_location = shutil.which("chromium")
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.add_argument("--window-size=1400,1000")
        self.driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        self._pictures = pictures
        self.driver.get(url)
        self.wait("the notebook", lambda: self.find(".jp-CodeCell"), LOAD_S)
        self.wait(
            "an idle kernel", lambda: self.find('.jp-Notebook-ExecutionIndicator[data-status="idle"]'), LOAD_S
        )

    def find(self, selector: str) -> list[WebElement]:
        """Elements of the page by CSS selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, what: str, done, seconds: float):
        """Whatever ``done`` gives, once it gives something.

        Raises:
            AssertionError: it did not in time.
        """
        deadline = time.monotonic() + seconds
        while not (result := done()):
            if time.monotonic() > deadline:
                self.picture("timeout")
                raise AssertionError(f"{what}: not there after {seconds:.0f} s")
            time.sleep(0.2)
        return result

    def picture(self, name: str) -> None:
        """Keep a screenshot."""
        self._pictures.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(self._pictures / f"{name}.png"))

    def menu(self, name: str, item: str) -> None:
        """Choose an item of a menu with the mouse."""
        bar = [entry for entry in self.find(".lm-MenuBar-item") if entry.text == name]
        bar[0].click()
        items = self.wait(
            f"menu item {item}",
            lambda: [entry for entry in self.find(".lm-Menu-itemLabel") if entry.text == item],
            10,
        )
        # A menu that has just opened takes no click.
        ActionChains(self.driver).move_to_element(items[0]).pause(0.7).click().perform()
        self.wait("the menu closed", lambda: not self.find(".lm-Menu"), 10)

    def code_cells(self) -> list[WebElement]:
        """Every code cell, from top to bottom."""
        return self.find(".jp-Notebook .jp-CodeCell")

    def prompts(self) -> list[str]:
        """The input prompts, such as ``[3]:``, or ``[*]:`` while a cell waits or runs."""
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent.trim())"
        return self.driver.execute_script(script, ".jp-Notebook .jp-CodeCell .jp-InputPrompt")

    def wait_until_all_ran(self, seconds: float) -> None:
        """Until every cell has run.

        Raises:
            AssertionError: a cell failed, which ends the run, or not in time.
        """

        def ran() -> bool:
            failed = self.errors()
            assert not failed, f"a cell failed: {failed[0][-2000:]}"
            return all(_number(prompt) for prompt in self.prompts())

        self.wait("all cells run", ran, seconds)

    def outputs(self, cell: WebElement) -> str:
        """The text of a cell's outputs, whether it is in sight or not."""
        script = "return [...arguments[0].querySelectorAll(arguments[1])].map(e => e.textContent).join('\\n')"
        return self.driver.execute_script(script, cell, ".jp-OutputArea-output")

    def errors(self) -> list[str]:
        """Tracebacks, and what else cells wrote to standard error."""
        kinds = [
            f'.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.{kind}"]'
            for kind in ("error", "stderr")
        ]
        return [output.get_attribute("textContent") for output in self.find(", ".join(kinds))]

    def charts(self) -> list[dict[str, object]]:
        """Width of every picture as loaded by the browser and as shown."""
        script = """
            return [...document.querySelectorAll('.jp-OutputArea-output img')].map(image => ({
                width: image.naturalWidth, shown: image.getBoundingClientRect().width,
                complete: image.complete}))
        """
        return self.driver.execute_script(script)

    def descriptions(self) -> list[str]:
        """Every picture in words, as it stands under the picture."""
        return [p.get_attribute("textContent") for p in self.find(".jp-OutputArea-output details p")]

    def show(self, element: WebElement) -> None:
        """Scroll an element into the middle of the window."""
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        time.sleep(0.5)

    def add_cell(self) -> WebElement:
        """A new code cell after the last one."""
        last = self.find(".jp-Notebook .jp-Cell")[-1]
        before = len(self.code_cells())
        self.show(last)
        last.click()
        body = self.driver.switch_to.active_element
        body.send_keys(Keys.ESCAPE)
        self.driver.switch_to.active_element.send_keys("b")
        return self.wait("a new cell", lambda: len(self.code_cells()) > before and self.code_cells()[-1], 10)

    def write(self, cell: WebElement, text: str) -> None:
        """Replace what is in a cell by a text, as pasting does."""
        self.show(cell)
        cell.find_element(By.CSS_SELECTOR, ".cm-content").click()
        self.driver.switch_to.active_element.send_keys(Keys.CONTROL, "a")
        self.driver.execute_cdp_cmd("Input.insertText", {"text": text})

    def run(self, cell: WebElement, seconds: float) -> str:
        """Run a cell by keyboard and give the text of its outputs."""
        before = cell.find_element(By.CSS_SELECTOR, ".jp-InputPrompt").get_attribute("textContent")
        cell.find_element(By.CSS_SELECTOR, ".cm-content").click()
        self.driver.switch_to.active_element.send_keys(Keys.CONTROL, Keys.ENTER)

        def ran() -> bool:
            prompt = cell.find_element(By.CSS_SELECTOR, ".jp-InputPrompt").get_attribute("textContent")
            return prompt != before and _number(prompt)

        self.wait("the cell to run", ran, seconds)
        self.show(cell)
        return self.outputs(cell)

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()


def _number(prompt: str) -> bool:
    return prompt.strip().strip("[]:").isdigit()
