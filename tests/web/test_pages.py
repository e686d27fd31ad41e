"""Every page: how it looks, whom it serves, what it makes of hostile content, and that it works without JavaScript."""

import os
import unittest
from urllib.parse import quote

from harness import ACCOUNTS, ORG, SCHEMES, SHOTS, WIDTHS, Daemon, until, visit


def setUpModule():
    global daemon, receipts, held, addresses
    daemon = Daemon(settings=["control.budget_calls_max=500", "control.budget_cpu_ms_max=3600000"])
    unittest.addModuleCleanup(daemon.close)
    receipts = daemon.seed()
    release = daemon.seed_question()
    held = [daemon.hold(f"old-{number}.txt") for number in range(3)]
    causes = daemon.ask("GET", "/v1/dlq/causes", by="ada")[1]
    late = next(each["cause"] for each in causes if each["code"] == "timed_out")
    addresses = {
        "inbox": "/",
        "question": f"/console/approvals/{held[0]}",
        "edit": f"/console/approvals/{release}?how=edit",
        "question-grant": f"/console/approvals/{release}?how=grant",
        "always": f"/console/approvals/{release}?how=always",
        "release": f"/console/approvals/{release}",
        "grant": f"/console/grants/{daemon.wanted['grant_id']}",
        "actions": "/console/actions",
        "actions-filtered": "/console/actions?q=-status%3Aok",
        "actions-none": "/console/actions?q=tool%3Anone",
        "action": f"/console/actions/{receipts['edit']}",
        "action-failed": f"/console/actions/{receipts['protected']}",
        "operations": "/console/operations",
        "letters": f"/console/operations/letters/{late}",
        "tools": "/console/operations/tools",
        "policy": "/console/operations/policy",
        "access": "/console/operations/access",
        "pause": "/console/operations/change?do=pause",
    }


class Looks(unittest.TestCase):
    def test_every_page_fits_every_width_and_axe_finds_nothing_serious(self):
        for scheme in SCHEMES:
            for width in WIDTHS:
                with visit(daemon, width=width, scheme=scheme, touch=width == 360) as ada:
                    for name, address in addresses.items():
                        with self.subTest(page=name, width=width, scheme=scheme):
                            answer = ada.open(address)
                            self.assertEqual(answer.status, 200)
                            ada.shoot(f"{name}-{width}-{scheme}")
                            self.assertLessEqual(ada.overflow(), 0)
                            self.assertEqual(ada.axe(), [])

    def test_signing_in_and_problems_look_like_the_rest(self):
        for scheme in SCHEMES:
            with visit(daemon, name=None, width=360, scheme=scheme) as stranger:
                stranger.open("/")
                stranger.shoot(f"sign-in-360-{scheme}")
                self.assertEqual(stranger.axe(), [])
                stranger.page.fill("input[name=token]", "efd_user_wrong")
                stranger.page.press("input[name=token]", "Enter")
                stranger.page.wait_for_selector("[role=alert]:visible")
                # The browser itself reports the status of a refusal.
                stranger.faults = [each for each in stranger.faults if "401" not in each]
            with visit(daemon, width=360, scheme=scheme) as ada:
                answer = ada.open("/console/actions/none")
                self.assertEqual(answer.status, 404)
                ada.shoot(f"problem-360-{scheme}")
                self.assertEqual(ada.axe(), [])
                ada.faults = [each for each in ada.faults if "404" not in each]

    @unittest.skipUnless(os.environ.get("EFFECTD_BLESS"), "only for new pictures")
    def test_the_pictures_of_the_documentation_are_drawn(self):
        folder = SHOTS.parent.parent / "docs" / "screens"
        for name, page, width, scheme in (
                ("console-inbox-light", "release", 1280, "light"), ("console-inbox-dark", "release", 1280, "dark"),
                ("console-phone-light", "release", 360, "light"), ("console-phone-dark", "release", 360, "dark"),
                ("console-action-light", "action", 1280, "light"), ("console-operations-dark", "operations", 1280, "dark"),
                ("console-operations-light", "operations", 1280, "light"), ("console-actions-dark", "actions", 1280, "dark")):
            with visit(daemon, width=width, scheme=scheme) as ada:
                ada.open(addresses[page])
                path = folder / f"{name}.png"
                ada.at_rest()
                ada.page.wait_for_selector("#link.live")
                ada.page.screenshot(path=path, clip={"x": 0, "y": 0, "width": width, "height": 800 if width > 400 else 900})
                self.assertLessEqual(path.stat().st_size, 150 * 1024, name)


class Roles(unittest.TestCase):
    def test_who_only_looks_sees_the_figures_and_no_button(self):
        with visit(daemon, name="mia") as mia:
            mia.open("/console/operations")
            page = mia.page
            self.assertTrue(page.get_by_text("Dead letters, by cause").is_visible())
            self.assertEqual(page.locator("a[href*='operations/change']").count(), 0)
            for path in ("tools", "policy", "access"):
                self.assertEqual(mia.open(f"/console/operations/{path}").status, 200)
                self.assertEqual(page.locator("a[href*='operations/change']").count(), 0, path)
            # She sees what waits, and decides nothing.
            for address in (addresses["inbox"], addresses["question"], addresses["grant"], addresses["action"]):
                self.assertEqual(mia.open(address).status, 200)
                self.assertEqual(page.locator("main button, main input").count(), 0, address)
            answer = mia.open("/console/operations/change?do=pause")
            self.assertEqual(answer.status, 403)
            mia.faults = [each for each in mia.faults if "403" not in each]

    def test_an_agent_and_a_service_cannot_sign_in(self):
        with visit(daemon, name=None) as stranger:
            stranger.open("/")
            stranger.page.fill("input[name=token]", daemon.tokens["planner"])
            stranger.page.press("input[name=token]", "Enter")
            self.assertIn("people", stranger.page.locator("[role=alert]:visible").inner_text())
            stranger.faults = [each for each in stranger.faults if "403" not in each]


class Actions(unittest.TestCase):
    def test_a_filter_is_completed_and_its_address_keeps_it(self):
        with visit(daemon) as ada:
            ada.open("/console/actions")
            page = ada.page
            page.locator("input[name=q]").press_sequentially("status:error too")
            offered = page.eval_on_selector_all("datalist option", "all => all.map(each => each.value)")
            self.assertIn("status:error tool:files.write_text", offered)
            page.fill("input[name=q]", "status:ok tool:files.list")
            page.press("input[name=q]", "Enter")
            page.wait_for_url("**q=*")
            until("only the list", lambda: page.locator("td.tool").all_inner_texts() == ["files.list"])
            kept = page.url
        with visit(daemon) as other:
            other.page.goto(kept)
            self.assertEqual(other.page.locator("td.tool").all_inner_texts(), ["files.list"])

    def test_the_list_is_live(self):
        with visit(daemon) as ada:
            ada.open("/console/actions")
            ada.page.wait_for_selector("#link.live")
            ada.page.evaluate("window.kept = true")
            daemon.act("files.stat", path="workspace/plan.db")
            ada.page.locator("td.tool", has_text="files.stat").first.wait_for()
            self.assertTrue(ada.page.evaluate("window.kept"), "the page was never loaded again")

    def test_a_wrong_filter_says_what_to_write(self):
        with visit(daemon) as ada:
            answer = ada.open("/console/actions?q=colour:red")
            self.assertEqual(answer.status, 400)
            self.assertIn("unknown condition", ada.page.locator("[role=alert]:visible").inner_text())
            self.assertEqual(ada.page.input_value("input[name=q]"), "colour:red")
            ada.faults = [each for each in ada.faults if "400" not in each]

    def test_a_receipt_is_verified_here_and_elsewhere(self):
        with visit(daemon) as ada:
            ada.open(addresses["action"])
            self.assertTrue(ada.page.get_by_text("Verified by this daemon").is_visible())
            with ada.page.expect_download() as download:
                ada.page.get_by_text("Download the proof").click()
            proof = daemon.folder / "proof.json"
            download.value.save_as(proof)
            command = ada.page.locator("section[aria-labelledby=proof] pre").inner_text().split()
        command = ["receipts", "verify", str(proof), *command[command.index("--key"):]]
        daemon.cli(*command)
        proof.write_text(proof.read_text().replace("gardener", "plumber").replace("executed", "failed"))
        daemon.cli(*command, ok=(1,))

    def test_an_undo_is_an_action_and_is_done_once(self):
        made = daemon.act("files.write_text", path="workspace/undone.txt", text="x\n")["receipt"]["receipt_id"]
        with visit(daemon, name="gil") as gil:
            gil.open(f"/console/actions/{made}")
            gil.button("Undo").dblclick()
            gil.page.wait_for_url(lambda url: made not in url)
            self.assertIn("files.undo", gil.page.locator("h1").inner_text())
        self.assertFalse((daemon.space / "undone.txt").exists())
        listed = daemon.ask("GET", f"/v1/receipts?q=tool:files.undo%20principal:account://{ORG}/gil&order=newest", by="gil")[1]
        undone = [each for each in listed["receipts"] if made in str(each["inputs"]) or made in str(each["outputs"])]
        self.assertLessEqual(len(undone), 1)

    def test_who_acts_for_nobody_undoes_nothing(self):
        with visit(daemon) as ada:
            made = daemon.act("files.write_text", path="workspace/kept.txt", text="x\n")["receipt"]["receipt_id"]
            ada.open(f"/console/actions/{made}")
            self.assertEqual(ada.page.get_by_role("button", name="Undo").count(), 0)
            # A form of her own gets her no further.
            path, action = f"/console/actions/{made}/undo", {"action_id": "undo-2"}
            refused = ada.context.request.post(daemon.address + path, form=action, headers={"Origin": daemon.address})
            self.assertEqual(refused.status, 404)
            self.assertIn("you have no such subject or space", refused.text())
        self.assertTrue((daemon.space / "kept.txt").exists())


class Operations(unittest.TestCase):
    def test_a_pause_asks_for_a_reason_and_says_it(self):
        with visit(daemon) as ada:
            ada.open("/console/operations")
            page = ada.page
            page.get_by_role("link", name="Pause effects").click()
            page.fill("input[name=reason]", "the disk is being replaced")
            page.fill("input[name=lasts]", "half an hour")
            ada.button("Pause").click()
            page.get_by_text("is not a span of time").wait_for()
            self.assertEqual(page.input_value("input[name=reason]"), "the disk is being replaced")
            page.fill("input[name=lasts]", "30m")
            ada.button("Pause").click()
            page.get_by_text("Effects are paused until").wait_for()
            self.assertTrue(page.get_by_text("the disk is being replaced").first.is_visible())
            self.assertEqual(daemon.act("files.list", path="workspace")["outcome"], "paused")
            page.get_by_role("link", name="Resume effects").click()
            ada.button("Resume").click()
            page.get_by_role("link", name="Pause effects").wait_for()
            self.assertEqual(page.get_by_text("Effects are paused").count(), 0)
            ada.faults = [each for each in ada.faults if "400" not in each]
        self.assertEqual(daemon.act("files.list", path="workspace")["outcome"], "executed")

    def test_a_disabled_tool_is_refused_until_it_is_enabled(self):
        with visit(daemon) as ada:
            page = ada.page
            ada.open("/console/operations/tools")
            page.get_by_role("link", name="Disable files.stat").click()
            ada.button("Disable tool").click()
            page.get_by_role("link", name="Enable files.stat").wait_for()
            refused = daemon.act("files.stat", path="workspace/plan.db")
            self.assertEqual(refused["code"], "tool_disabled")
            page.get_by_role("link", name="Enable files.stat").click()
            ada.button("Enable tool").click()
            page.get_by_role("link", name="Disable files.stat").wait_for()

    def test_one_letter_is_requeued_before_the_rest(self):
        with visit(daemon) as ada:
            page = ada.page
            ada.open("/console/operations")
            page.locator("table.causes a", has_text="sqlite.query").click()
            until("its three letters are listed", lambda: page.locator("table.letters tbody tr").count() == 3)
            page.get_by_role("link", name="Requeue one").click()
            page.fill("input[name=reason]", "is it still slow?")
            ada.button("Requeue letters").click()
            page.wait_for_url("**/console/operations/letters/**")
            # It fails again, as a new letter of the same cause.
            count = lambda: [each["newest"] for each in daemon.ask("GET", "/v1/dlq/causes", by="ada")[1] if each["code"] == "timed_out"]
            until("the letter comes back", lambda: count() and count()[0] > 3)

    def test_changed_files_show_which_decisions_flip(self):
        text = (daemon.state / "policy" / "policy.toml").read_text()
        closed = (text.split("[example_tools")[0] + ACCOUNTS).replace('band = "GREEN"', 'band = "BLACK"')
        rules = (daemon.state / "policy" / "coding.cedar").read_text()
        for javascript in (True, False):
            with visit(daemon, javascript=javascript) as ada:
                page = ada.page
                ada.open("/console/operations/policy")
                page.fill("textarea[aria-label='policy.toml']", closed)
                page.fill("textarea[aria-label='rules.cedar']", rules)
                ada.button("Decide again").click()
                row = page.locator("tr", has=page.locator(f"a[href='/console/actions/{receipts['list']}']"))
                row.wait_for()
                self.assertIn("deny by space", row.inner_text())
                self.assertEqual(page.input_value("textarea[aria-label='policy.toml']"), closed)
                for width in WIDTHS:
                    page.set_viewport_size({"width": width, "height": 900})
                    self.assertLessEqual(ada.overflow(), 0)
                    ada.shoot(f"policy-replayed-{width}")
                page.fill("textarea[aria-label='policy.toml']", closed + "\nnonsense = 1\n")
                ada.button("Decide again").click()
                page.get_by_text("unknown field `nonsense`").wait_for()
                ada.faults = [each for each in ada.faults if "422" not in each]

    def test_a_grant_is_revoked_where_it_is_listed(self):
        daemon.ask("POST", "/v1/grants", {"org": ORG, "tool": "files.move", "calls_max": 1}, by="ada")
        with visit(daemon) as ada:
            page = ada.page
            ada.open("/console/operations/access")
            page.get_by_role("link", name="files.move").click()
            ada.button("Revoke").click()
            page.locator("#question .badge", has_text="revoked").wait_for()
            ada.open("/console/operations/access")
            self.assertTrue(page.locator("li", has_text="files.move").get_by_text("revoked").is_visible())


class WithoutJavaScript(unittest.TestCase):
    def test_the_filter_the_undo_and_a_pause_are_plain_forms(self):
        made = daemon.act("files.write_text", path="workspace/plain.txt", text="x\n")["receipt"]["receipt_id"]
        with visit(daemon, name="gil", javascript=False) as gil:
            page = gil.page
            gil.open("/console/actions")
            page.fill("input[name=q]", f"receipt:{made}")
            page.press("input[name=q]", "Enter")
            page.locator("td.tool a").click()
            page.get_by_role("button", name="Undo").click()
            self.assertIn("files.undo", page.locator("h1").inner_text())
        with visit(daemon, javascript=False) as ada:
            page = ada.page
            for address in addresses.values():
                self.assertEqual(ada.open(address).status, 200)
                self.assertTrue(page.locator("h1").first.is_visible())
            ada.open("/console/operations")
            page.get_by_role("link", name="Pause effects").click()
            ada.button("Pause").click()
            self.assertTrue(page.get_by_text("Effects are paused").is_visible())
            page.get_by_role("link", name="Resume effects").click()
            ada.button("Resume").click()
            self.assertTrue(page.get_by_role("link", name="Pause effects").is_visible())


class Hostile(unittest.TestCase):
    """What planners write is text, wherever it is shown."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()
        cls.addClassCleanup(cls.daemon.close)
        cls.markup = "<img src=x onerror=alert(1)><script>alert(2)</script>"
        cls.turned = "invoice\u202egnp.exe"
        daemon = cls.daemon
        cls.receipts = [
            daemon.act("files.write_text", path=f"workspace/{cls.markup.replace('/', '_')}.txt", text="x"),
            daemon.act("files.read_text", path=f"workspace/{'a' * 200}.txt"),
            daemon.act("files.write_text", path="workspace/'\"><b>bold</b>.txt", text="{{ 7 * 7 }} ${7*7}\n"),
        ]
        many = "".join(f"{number} <b>row</b>\n" for number in range(10_000))
        cls.held = [
            daemon.hold("<b>bold</b>.txt".replace("/", "_"), cls.markup + "\n" + "x" * 100_000 + "\n" + cls.turned + "\n"),
            daemon.hold("many.txt", many),
        ]

    def test_content_is_text_on_every_page(self):
        pages = ["/", "/console/actions", "/console/operations"]
        pages += [f"/console/approvals/{each}" for each in self.held]
        pages += [f"/console/actions/{each['receipt']['receipt_id']}" for each in self.receipts if each.get("receipt")]
        self.assertGreaterEqual(len(pages), 6)
        for width in (360, 1440):
            with visit(self.daemon, width=width) as ada:
                for number, address in enumerate(pages):
                    with self.subTest(page=address, width=width):
                        self.assertEqual(ada.open(address).status, 200)
                        found = ada.page.evaluate(
                            "[document.querySelectorAll('main img[src=x], main script, main b').length,"
                            " [...document.body.innerText].filter(each => /[\\u202a-\\u202e\\u2066-\\u2069\\u200b-\\u200f]/.test(each)).length]")
                        self.assertEqual(found, [0, 0])
                        self.assertLessEqual(ada.overflow(), 0)
                        ada.page.screenshot(path=SHOTS / f"hostile-{number}-{width}.png")

    def test_a_filter_with_markup_comes_back_as_text(self):
        with visit(self.daemon) as ada:
            ada.open("/console/actions?q=" + quote(f"\"tool:{self.markup}\""))
            self.assertEqual(ada.page.locator("main img, main script").count(), 0)
            ada.faults = [each for each in ada.faults if "400" not in each]


if __name__ == "__main__":
    unittest.main()
