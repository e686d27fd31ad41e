"""The real daemon, and Debian's Chromium in front of its console.

`EFFECTD` names the program, `EFFECTD_AXE` the file of axe-core, `EFFECTD_SHOTS` the folder for pictures.
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import sync_playwright

PROGRAM = os.environ["EFFECTD"]
AXE = Path(os.environ["EFFECTD_AXE"]).read_text()
SHOTS = Path(os.environ["EFFECTD_SHOTS"])
CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
SUBJECT, SPACE, ORG = "agent://planner@deviceA", "shared:code", "work"
WIDTHS = (360, 768, 1440)
SCHEMES = ("light", "dark")
# The program refuses variables that it does not know.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("EFFECTD")}
# Nothing here takes longer, also on a busy machine.
WAIT_S = 30

# Ada decides and operates, Mia looks, and Gil acts as the planner does.
ACCOUNTS = """
[principals."account://ORG/ada"]
subjects = []
roles = ["operate", "approver"]
orgs = { work = "admin" }

[principals."account://ORG/mia"]
subjects = []
roles = ["look"]
orgs = { work = "member" }

[principals."account://ORG/gil"]
subjects = ["agent://planner@deviceA"]
roles = ["planner", "learner"]
orgs = { work = "member" }

[principals."account://ORG/planner"]
subjects = ["agent://planner@deviceA"]
""".replace("ORG", ORG)


DEPLOYMENT = """\
# The shop, as it runs in both regions.
[service]
name = "shop"
image = "shop:41"
replicas = 2

[limits]
memory = "512M"
requests_per_second = 400

[[routes]]
path = "/"
timeout = "5s"
"""


def until(what, holds):
    """Waits until a condition holds, and returns what it came to."""
    end = time.monotonic() + WAIT_S
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {WAIT_S} s: {what}")
        time.sleep(0.02)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


class Daemon:
    """`effectd serve --listen` with a state of its own, and the accounts of `ACCOUNTS`."""

    def __init__(self, policy="", settings=()):
        self.folder = Path(tempfile.mkdtemp(prefix="effectd-web."))
        self.state, self.port, self.process = self.folder / ".effectd", free_port(), None
        self.settings = list(settings)
        self.address = f"http://127.0.0.1:{self.port}"
        self.tokens = {}
        self.actions = 0
        self.cli("init", "--preset", "coding")
        with open(self.state / "policy" / "policy.toml", "a") as file:
            file.write(ACCOUNTS + policy)
        self.space.mkdir()
        self.start()
        for name, kind in (("ada", "user"), ("mia", "user"), ("gil", "user"), ("planner", "service")):
            made = self.cli("tokens", "create", "--kind", kind, "--org", ORG, "--name", name, "--yes")
            self.tokens[name] = made.strip()

    @property
    def space(self):
        return self.folder / "workspace"

    def cli(self, *words, ok=(0,)):
        ran = subprocess.run([PROGRAM, *words, "--state", self.state], capture_output=True, text=True, cwd=self.folder,
                             env=ENVIRONMENT)
        assert ran.returncode in ok, (words, ran.returncode, ran.stdout, ran.stderr)
        return ran.stdout

    def start(self):
        words = ["serve", "--state", self.state, "--listen", f"127.0.0.1:{self.port}", "--set", "gateway.token_rate_max=0"]
        for setting in self.settings:
            words += ["--set", setting]
        with open(self.folder / "daemon.log", "ab") as log:
            self.process = subprocess.Popen([PROGRAM, *words], cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            env=ENVIRONMENT)
        until("the daemon answers", self.answers)

    def answers(self):
        assert self.process.poll() is None, (self.folder / "daemon.log").read_text()[-3000:]
        with contextlib.suppress(OSError):
            return self.ask("GET", "/healthz", by=None)[0] == 200

    def stop(self, kill=False):
        self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        self.process.wait(WAIT_S)

    def close(self):
        if self.process.poll() is None:
            self.stop()
        shutil.rmtree(self.folder)

    def ask(self, method, path, body=None, by="planner"):
        """One request with this account's token: the status, and the answer as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        headers = {"Authorization": f"Bearer {self.tokens[by]}"} if by else {}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        is_json = answer.getheader("content-type", "").split(";")[0].endswith("json")
        return answer.status, json.loads(text) if is_json else text.decode()

    def act(self, tool, wait=True, qos=None, rationale=None, **params):
        """The planner asks for an action; with `wait`, until it has ended or waits for a person."""
        self.actions += 1
        decision = {"action_id": f"web-{self.actions}", "subject_id": SUBJECT, "space_id": SPACE, "tool_id": tool,
                    "params": {**params, "space_id": SPACE}}
        decision.update({name: value for name, value in (("qos", qos), ("rationale", rationale)) if value})
        status, answer = self.ask("POST", "/v1/actions" + ("?wait=20000" if wait else ""), decision)
        return answer

    def hold(self, name, text="short lived\n"):
        """A deletion of a new file, which waits for a person: its approval."""
        (self.space / name).write_text(text)
        answer = self.act("files.delete", path=f"workspace/{name}")
        assert answer["state"] == "held", answer
        return answer["approval"]["approval_id"]

    def ask_for_command(self, name):
        """A run of a program, which waits for a person and can be decided with others: its approval."""
        return self.act("command.run", argv=["wc", "-c", name])["approval"]["approval_id"]

    def approval(self, approval):
        return self.ask("GET", f"/v1/approvals/{quote(approval, safe='')}", by="ada")[1]

    def seed(self):
        """One of everything that a page can show; returns the receipts by name."""
        with contextlib.closing(sqlite3.connect(self.space / "plan.db")) as plan:
            plan.execute("create table tasks (name)")
        asked = {
            "note": self.act("files.write_text", path="workspace/notes/monday.txt", text="Call the plumber.\n"),
            "edit": self.act("files.edit_text", path="workspace/notes/monday.txt", find="plumber", replace="gardener"),
            "list": self.act("files.list", path="workspace/notes"),
            "protected": self.act("files.write_text", path="workspace/.git/config", text="[core]\n"),
            "missing": self.act("files.read_text", path="workspace/none.txt"),
            "quarantined": self.act("files.write_text", path="workspace/key.txt", text="-----BEGIN PRIVATE KEY-----\nMIIEvQ"),
            "query": self.act("sqlite.query", path="workspace/plan.db", sql="select count(*) from tasks"),
        }
        endless = "with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c"
        for _ in range(3):
            asked["late"] = self.act("sqlite.query", path="workspace/plan.db", sql=endless,
                                     qos={"max_retries": 0, "timeout_ms": 200})
        receipts = {name: answer["receipt"]["receipt_id"] for name, answer in asked.items()}
        undo = {"action_id": "undo-1", "subject_id": SUBJECT, "space_id": SPACE, "tool_id": "files.undo",
                "params": {"receipt_id": receipts["edit"], "space_id": SPACE}}
        receipts["undo"] = self.ask("POST", "/v1/actions?wait=20000", undo, by="gil")[1]["receipt"]["receipt_id"]
        # A request of somebody who may not grant it: it waits for a person.
        wanted = {"org": ORG, "tool": "files.copy", "calls_max": 3, "reason": "the monthly archive"}
        status, self.wanted = self.ask("POST", "/v1/grants/requests", wanted, by="gil")
        assert (status, self.wanted["state"]) == (200, "requested"), self.wanted
        self.session = self.ask("POST", "/v1/sessions", {"space_id": SPACE, "subject_id": SUBJECT, "title": "Plan the week"}, by="ada")[1]["id"]
        grant = {"org": ORG, "tool": "files.copy", "calls_max": 5, "reason": "the weekly backup"}
        status, made = self.ask("POST", "/v1/grants", grant, by="ada")
        assert status == 200, made
        return receipts


    def seed_question(self):
        """A change of a file that the organisation asks about, with a reason and a past; its approval."""
        (self.space / "deploy.toml").write_text(DEPLOYMENT)
        self.cli("policy", "set-mode", "--org", ORG, "--tool", "files.edit_text", "require_approval", "--yes")
        changes = [("replicas = 2", "replicas = 3"), ("[limits]", "[bounds]"), ('image = "shop:41"\nreplicas = 3', 'image = "shop:42"\nreplicas = 6')]
        for number, (find, replace) in enumerate(changes):
            answer = self.act("files.edit_text", rationale={"reason": "Sales expect three times the visitors.", "confidence": 0.8},
                              path="workspace/deploy.toml", find=find, replace=replace)
            approval = answer["approval"]["approval_id"]
            if number < 2:
                digest = self.approval(approval)["digest"]
                verb = ("approve?wait_ms=20000", "deny")[number]
                body = ({"digest": digest}, {"reason": "other services read this name"})[number]
                status, decided = self.ask("POST", f"/v1/approvals/{approval}/{verb}", body, by="ada")
                assert status == 200, decided
        return approval


# What a page reports about itself: violations of its policy, and errors that nothing caught.
WATCH = """
window.__faults = [];
addEventListener("securitypolicyviolation", e => window.__faults.push("csp: " + e.violatedDirective + " " + e.blockedURI + " " + e.sample), true);
"""


class Browser:
    """One Chromium for all tests of a run."""

    one = None

    def __init__(self):
        self.playwright = sync_playwright().start()
        self.chromium = self.playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

    @classmethod
    def get(cls):
        if cls.one is None:
            cls.one = cls()
            unittest.addModuleCleanup(cls.one.quit)
        return cls.one

    def quit(self):
        type(self).one = None
        self.chromium.close()
        self.playwright.stop()


class Visitor:
    """A person with a browser of their own. Every fault of every page is collected."""

    def __init__(self, daemon, name="ada", width=1440, scheme="light", javascript=True, touch=False):
        self.daemon, self.faults = daemon, []
        self.context = Browser.get().chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=javascript,
            has_touch=touch, is_mobile=touch, reduced_motion="reduce", timezone_id="UTC", locale="en-GB")
        self.context.set_default_timeout(WAIT_S * 1000)
        self.context.add_init_script(WATCH)
        self.context.on("console", lambda message: self.console(message))
        self.context.on("weberror", lambda error: self.faults.append(f"error: {error.error}"))
        self.javascript = javascript
        self.page = self.tab()
        if name:
            self.log_in(name)

    def tab(self):
        return self.context.new_page()

    def console(self, message):
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text} at {message.location}")

    def log_in(self, name):
        self.page.goto(self.daemon.address + "/")
        self.page.fill("input[name=token]", self.daemon.tokens[name])
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("navigation", name="Pages").wait_for()

    def open(self, path, page=None):
        return (page or self.page).goto(self.daemon.address + path)

    def at_rest(self, page=None):
        """Waits until the page takes keys and clicks: right after it has changed, it takes none."""
        (page or self.page).wait_for_selector("html:not([data-rest]):not([aria-busy])", state="attached")

    def press(self, key):
        self.at_rest()
        self.page.keyboard.press(key)

    def button(self, name, page=None):
        """A button of the page, once it takes clicks."""
        self.at_rest(page)
        return (page or self.page).locator("main").get_by_role("button", name=name)

    def axe(self, page=None):
        """What axe finds serious or critical on the page."""
        page = page or self.page
        # By the debugger, which the page's policy does not bind.
        page.evaluate(AXE + ";0")
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        bad = [each for each in found if each["impact"] in ("serious", "critical")]
        return [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in bad for node in each["nodes"]]

    def shoot(self, name, page=None):
        SHOTS.mkdir(parents=True, exist_ok=True)
        path = SHOTS / f"{name}.png"
        (page or self.page).screenshot(path=path, full_page=True)
        return path

    def overflow(self, page=None):
        """By how many pixels the page is wider than the window."""
        return (page or self.page).evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def close(self):
        """Ends the visit; fails if any page had a fault."""
        if self.javascript:
            for page in self.context.pages:
                with contextlib.suppress(Exception):
                    self.faults += page.evaluate("window.__faults || []")
        self.context.close()
        assert not self.faults, "\n".join(self.faults)


@contextlib.contextmanager
def visit(daemon, **how):
    visitor = Visitor(daemon, **how)
    try:
        yield visitor
    except BaseException:
        with contextlib.suppress(Exception):
            visitor.shoot("failed")
            visitor.context.close()
        raise
    visitor.close()
