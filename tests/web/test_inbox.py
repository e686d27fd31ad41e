"""The inbox: by keyboard, by touch, without JavaScript; two tabs, double clicks, stale pages, and a daemon that restarts."""

import unittest

from harness import Daemon, until, visit


def setUpModule():
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.close)


def state(approval):
    return daemon.approval(approval)["state"]


def ended(approval):
    """How the action of an approval ended, once it has."""
    action = daemon.approval(approval)["action_ids"][0]
    listed = daemon.ask("GET", f"/v1/receipts?q=action:%22{action}%22", by="ada")[1]["receipts"]
    return listed[0]["outcome"] if listed else None


class Inbox(unittest.TestCase):
    def tearDown(self):
        for each in daemon.ask("GET", "/v1/approvals", by="ada")[1]["approvals"]:
            if each["state"] == "pending":
                daemon.ask("POST", f"/v1/approvals/{each['approval_id']}/deny", {}, by="ada")

    def go(self, visitor, approval):
        visitor.open(f"/console/approvals/{approval}")
        visitor.page.wait_for_selector("#link.live")

    def test_everything_is_done_by_keys(self):
        first, second, third, fourth = [daemon.hold(f"key-{number}.txt") for number in range(4)]
        with visit(daemon) as ada:
            page = ada.page
            self.go(ada, first)
            page.keyboard.press("?")
            page.locator("dialog[open]").wait_for()
            page.keyboard.press("Escape")
            page.keyboard.press("j")
            page.wait_for_url(f"**/{second}*")
            page.keyboard.press("k")
            page.wait_for_url(f"**/{first}*")
            self.press(page, "a")
            until("the first is approved", lambda: state(first) == "approved")
            until("the first has ended", lambda: ended(first) == "executed")
            # The next question comes by itself.
            page.wait_for_url(f"**/{second}*")
            self.press(page, "d")
            page.keyboard.type("not on a Monday")
            page.keyboard.press("Enter")
            until("the second is denied", lambda: state(second) == "denied")
            self.assertEqual(daemon.approval(second)["decided"]["reason"], "not on a Monday")
            page.wait_for_url(f"**/{third}*")
            self.press(page, "e")
            page.wait_for_url("**how=edit*")
            field = page.get_by_label("path")
            self.assertEqual(field.input_value(), "workspace/key-2.txt")
            field.fill("workspace/key-3.txt")
            page.get_by_role("button", name="Preview").press("Enter")
            page.get_by_role("button", name="Approve with these parameters").press("Enter")
            until("the third is approved", lambda: state(third) == "approved")
            until("the third has ended", lambda: ended(third) == "executed")
            self.assertTrue((daemon.space / "key-2.txt").exists())
            self.assertFalse((daemon.space / "key-3.txt").exists())

    def press(self, page, key):
        """A key, once the page takes keys: right after the question has changed, it takes none."""
        until("the page is at rest", lambda: not page.evaluate("document.documentElement.hasAttribute('aria-busy')"))
        page.wait_for_timeout(450)
        page.keyboard.press(key)

    def test_everything_is_done_by_touch(self):
        first, second = [daemon.hold(f"touch-{number}.txt") for number in range(2)]
        with visit(daemon, width=360, touch=True) as ada:
            page = ada.page
            ada.open("/")
            page.locator(f"a[href*='{second}']").first.tap()
            page.wait_for_url(f"**/{second}*")
            page.get_by_text("Deny", exact=False).first.tap()
            page.fill("#deny-reason", "wrong file")
            page.locator("button[value=deny]").last.tap()
            until("the second is denied", lambda: state(second) == "denied")
            ada.open(f"/console/approvals/{first}")
            page.locator("button[value=approve]").first.tap()
            until("the first is approved", lambda: state(first) == "approved")
            small = page.evaluate("""[...document.querySelectorAll('main a.button, main button, main summary.button')]
                .filter(each => each.offsetParent && each.getBoundingClientRect().height < 44).map(each => each.textContent)""")
            self.assertEqual(small, [], "what a finger has to hit")

    def test_several_are_decided_as_they_were_shown(self):
        marked = [daemon.hold(f"several-{number}.txt") for number in range(3)]
        with visit(daemon) as ada:
            page = ada.page
            ada.open("/")
            boxes = page.locator("input[name=pick]")
            # A deletion is of tier R4, which is decided one by one.
            self.assertEqual(boxes.count(), 0)
        asked = [daemon.act("command.run", argv=["wc", "-c", f"several-{number}.txt"])["approval"]["approval_id"] for number in range(2)]
        with visit(daemon) as ada:
            page = ada.page
            ada.open("/")
            for box in page.locator("input[name=pick]").all():
                box.check()
            page.locator("button[value=approve]", has_text="marked").click()
            for each in asked:
                until("both are approved", lambda: state(each) == "approved")
        self.assertEqual([state(each) for each in marked], ["pending"] * 3)

    def test_two_tabs_and_a_double_click_decide_once(self):
        approval = daemon.hold("twice.txt")
        with visit(daemon) as ada:
            one, other = ada.page, ada.tab()
            for page in (one, other):
                ada.open(f"/console/approvals/{approval}", page)
            one.locator("button[value=approve]").first.dblclick()
            until("it is approved", lambda: state(approval) == "approved")
            # Live: the other tab says so without a reload, or refuses a click that comes before.
            buttons = other.locator("#question button[value=approve]")
            until("the other tab has no button", lambda: buttons.count() == 0 or not buttons.first.is_enabled())
        receipts = daemon.ask("GET", "/v1/receipts?q=tool:files.delete&order=newest", by="ada")[1]["receipts"]
        self.assertEqual(len([each for each in receipts if each["inputs"].get("path") == "workspace/twice.txt"]), 1)

    def test_a_stale_page_shows_what_is_different(self):
        approval = daemon.hold("stale.txt", "the first text\n")
        with visit(daemon, javascript=False) as ada:
            page = ada.page
            ada.open(f"/console/approvals/{approval}")
            (daemon.space / "stale.txt").write_text("another text\n")
            page.locator("button[value=approve]").first.click()
            self.assertEqual(state(approval), "pending")
            self.assertTrue(page.get_by_text("has changed").first.is_visible())
            page.locator("button[value=approve]").first.click()
            until("it is approved now", lambda: state(approval) == "approved")

    def test_a_question_comes_and_expires_without_a_reload(self):
        short = Daemon(policy="\n[timeouts]\nhigh_ms = 6000\n")
        self.addCleanup(short.close)
        with visit(short) as ada:
            page = ada.page
            ada.open("/")
            page.wait_for_selector("#link.live")
            page.evaluate("window.kept = true")
            approval = short.hold("soon.txt")
            page.locator(f"a[href*='{approval}']").first.wait_for()
            buttons = page.locator("#question button[value=approve]")
            until("it has expired", lambda: buttons.count() == 0 or not buttons.first.is_enabled())
            self.assertEqual(short.approval(approval)["state"] in ("expired", "pending"), True)
            self.assertTrue(page.evaluate("window.kept"), "the page was never loaded again")

    def test_a_restart_of_the_daemon_is_survived(self):
        approval = daemon.hold("restart.txt")
        with visit(daemon) as ada:
            page = ada.page
            self.go(ada, approval)
            daemon.stop(kill=True)
            page.get_by_text("Reconnecting").wait_for()
            daemon.start()
            # Sessions of browsers are in memory: it asks who this is, and leads back.
            page.wait_for_url("**/console/login*")
            page.fill("input[name=token]", daemon.tokens["ada"])
            page.press("input[name=token]", "Enter")
            page.wait_for_url(lambda url: "login" not in url)
            ada.open(f"/console/approvals/{approval}")
            page.locator("button[value=approve]").first.click()
            until("it is approved", lambda: state(approval) == "approved")
            # The browser reports the connection that was lost.
            ada.faults = [each for each in ada.faults if "ERR_" not in each and "401" not in each]

    def test_without_javascript_it_is_plain_forms(self):
        first, second = [daemon.hold(f"plain-{number}.txt") for number in range(2)]
        with visit(daemon, width=768, javascript=False) as ada:
            page = ada.page
            ada.open("/")
            page.locator(f"a[href*='{first}']").first.click()
            page.locator("button[value=approve]").first.click()
            self.assertEqual(state(first), "approved")
            ada.open(f"/console/approvals/{second}")
            page.locator("summary", has_text="Deny").click()
            page.fill("#deny-reason", "no")
            page.locator("button[value=deny]").last.click()
            self.assertEqual(state(second), "denied")


if __name__ == "__main__":
    unittest.main()
