"""What the console costs: bytes and time of the first page, the delay of a live question, and the list of many receipts.

A benchmark, which `.ci/web/run figures` runs on a quiet machine: each figure is printed with its goal, and no time fails.
"""

import contextlib
import http.client
import json
import os
import random
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

from harness import SPACE, SUBJECT, Daemon, until, visit

EVENTS = 40
RECEIPTS = int(os.environ.get("EFFECTD_WEB_RECEIPTS", "100000"))
PAGES = 40
WORKERS = 12


def setUpModule():
    global daemon
    daemon = Daemon(settings=[f"control.{of}_rate_max=0" for of in ("principal", "space", "subject", "tool")])
    unittest.addModuleCleanup(daemon.close)


def judge(what, value, goal, unit):
    print(f"\n  {what}: {value:.0f} {unit} (goal {goal} {unit}): {'reached' if value <= goal else 'MISSED'}", flush=True)


def p99(values):
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


class Figures(unittest.TestCase):
    def test_the_first_page_is_small_and_quick(self):
        for number in range(3):
            daemon.hold(f"first-{number}.txt")
        paints, sizes = [], []
        with visit(daemon) as ada:
            for _ in range(5):
                page = ada.tab()
                session = ada.context.new_cdp_session(page)
                session.send("Network.enable")
                session.send("Network.setCacheDisabled", {"cacheDisabled": True})
                received = []
                session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
                ada.open("/", page)
                painted = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
                paints.append(until("it is painted", lambda: page.evaluate(painted)))
                sizes.append(sum(received))
                page.close()
        judge("first page, over the wire", max(sizes) / 1024, 100, "KB")
        judge("first page, painted (median)", sorted(paints)[2], 150, "ms")

    def test_a_question_is_on_the_screen_at_once(self):
        took = []
        chance = random.Random(7)
        with visit(daemon) as ada:
            page = ada.page
            ada.open("/")
            page.wait_for_selector("#link.live")
            # Notes when each question came onto the screen.
            page.evaluate("""() => {
                window.seen = {};
                new MutationObserver(() => {
                    for (const row of document.querySelectorAll('#queue a[data-row]')) seen[new URL(row.href).pathname.split('/').pop()] ??= Date.now();
                }).observe(document.body, {childList: true, subtree: true, attributes: true});
            }""")
            for number in range(EVENTS):
                # As people are asked: sometimes twice within a second.
                page.wait_for_timeout(chance.uniform(150, 1200))
                (daemon.space / f"event-{number}.txt").write_text("x\n")
                answer = daemon.act("files.delete", path=f"workspace/event-{number}.txt")
                # The question is durable by now; its answer came a little later.
                asked = time.time() * 1000
                approval = answer["approval"]["approval_id"]
                seen = until("the question is on the screen", lambda: page.evaluate("id => window.seen[id]", approval))
                took.append(max(seen - asked, 0))
                daemon.ask("POST", f"/v1/approvals/{approval}/deny", {}, by="ada")
        took.sort()
        judge(f"a question on the screen, median of {EVENTS}", took[len(took) // 2], 300, "ms")
        judge(f"a question on the screen, p99 of {EVENTS}", p99(took), 300, "ms")

    def test_a_list_of_many_receipts_is_paged_quickly(self):
        refuse(RECEIPTS)
        cookie = sign_in()
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port)
        self.addCleanup(connection.close)
        took, path = [], "/console/actions"
        for _ in range(PAGES):
            begun = time.perf_counter()
            connection.request("GET", path, headers={"Cookie": cookie})
            answer = connection.getresponse()
            text = answer.read().decode()
            took.append((time.perf_counter() - begun) * 1000)
            self.assertEqual(answer.status, 200)
            older = text.split(">Older<")[0].rsplit('href="', 1)
            path = older[1].split('"')[0].replace("&amp;", "&").replace("&#38;", "&") if ">Older<" in text else "/console/actions"
        took.sort()
        judge(f"a page of {RECEIPTS} receipts, median", took[len(took) // 2], 100, "ms")
        judge(f"a page of {RECEIPTS} receipts, p99 of {PAGES}", p99(took), 100, "ms")


def sign_in():
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", daemon.port)) as connection:
        return sign_in_on(connection)


def sign_in_on(connection):
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": daemon.address}
    connection.request("POST", "/console/login", urlencode({"token": daemon.tokens["ada"], "to": "/"}), headers)
    answer = connection.getresponse()
    assert answer.status == 303, (answer.status, answer.read())
    return answer.getheader("Set-Cookie").split(";")[0]


def refuse(many):
    """So many receipts, each of an action that the policy refuses: none needs a child."""
    def some(worker):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)) as connection:
            for number in range(many // WORKERS):
                decision = {"action_id": f"many-{worker}-{number}", "subject_id": SUBJECT, "space_id": SPACE, "tool_id": "files.write_text",
                            "params": {"path": f"workspace/.git/{worker}-{number}", "text": "x", "space_id": SPACE}}
                connection.request("POST", "/v1/actions?wait=20000", json.dumps(decision), {"Authorization": f"Bearer {daemon.tokens['planner']}"})
                answer = connection.getresponse()
                assert answer.status == 403, (answer.status, answer.read())
                answer.read()
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(some, range(WORKERS)))


if __name__ == "__main__":
    unittest.main()
