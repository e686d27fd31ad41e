"""The inbox: by keyboard, by touch, without JavaScript; two tabs, double clicks, stale pages, and a daemon that restarts."""

import unittest

from harness import ORG, SPACE, SUBJECT, Daemon, until, visit


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
            ada.press("a")
            until("the first is approved", lambda: state(first) == "approved")
            until("the first has ended", lambda: ended(first) == "executed")
            # The next question comes by itself.
            page.wait_for_url(f"**/{second}*")
            ada.press("d")
            page.keyboard.type("not on a Monday")
            page.keyboard.press("Enter")
            until("the second is denied", lambda: state(second) == "denied")
            self.assertEqual(daemon.approval(second)["decided"]["reason"], "not on a Monday")
            page.wait_for_url(f"**/{third}*")
            ada.press("e")
            page.wait_for_url("**how=edit*")
            field = page.get_by_label("path")
            self.assertEqual(field.input_value(), "workspace/key-2.txt")
            field.fill("workspace/key-3.txt")
            ada.button("Preview").press("Enter")
            page.get_by_role("button", name="Approve with these parameters").wait_for()
            # What happens elsewhere leaves the preview alone.
            daemon.hold("key-5.txt")
            page.locator("a[data-row]", has_text="key-5.txt").wait_for()
            ada.button("Approve with these parameters").press("Enter")
            until("the third is approved", lambda: state(third) == "approved")
            until("the third has ended", lambda: ended(third) == "executed")
            self.assertTrue((daemon.space / "key-2.txt").exists())
            self.assertFalse((daemon.space / "key-3.txt").exists())

    def test_everything_is_done_by_touch(self):
        first, second = [daemon.hold(f"touch-{number}.txt") for number in range(2)]
        both = [daemon.ask_for_command(f"touch-{number}.txt") for number in range(2)]
        with visit(daemon, width=360, touch=True) as ada:
            page = ada.page
            ada.open("/")
            page.locator(f"a[href*='{second}']").first.tap()
            page.wait_for_url(f"**/{second}*")
            page.locator("summary", has_text="Deny").tap()
            page.fill("#deny-reason", "wrong file")
            ada.button("Deny").tap()
            until("the second is denied", lambda: state(second) == "denied")
            ada.open(f"/console/approvals/{first}")
            ada.button("Approve once").tap()
            until("the first is approved", lambda: state(first) == "approved")
            small = page.evaluate("""[...document.querySelectorAll('main a.button, main button, main summary.button')]
                .filter(each => each.offsetParent && each.getBoundingClientRect().height < 44).map(each => each.textContent)""")
            self.assertEqual(small, [], "what a finger has to hit")
            ada.open("/")
            for box in page.locator("input[name=pick]").all():
                box.tap()
            page.fill("#several-reason", "both at once")
            ada.button("Deny marked").tap()
            for each in both:
                until("both are denied", lambda: state(each) == "denied")

    def test_several_are_decided_as_they_were_shown(self):
        marked = [daemon.hold(f"several-{number}.txt") for number in range(3)]
        with visit(daemon) as ada:
            page = ada.page
            ada.open("/")
            boxes = page.locator("input[name=pick]")
            # A deletion is of tier R4, which is decided one by one.
            self.assertEqual(boxes.count(), 0)
        asked = [daemon.ask_for_command(f"several-{number}.txt") for number in range(2)]
        with visit(daemon) as ada:
            page = ada.page
            ada.open("/")
            for box in page.locator("input[name=pick]").all():
                box.check()
            ada.button("Approve marked").click()
            for each in asked:
                until("both are approved", lambda: state(each) == "approved")
        self.assertEqual([state(each) for each in marked], ["pending"] * 3)

    def test_two_tabs_and_a_double_click_decide_once(self):
        approval = daemon.hold("twice.txt")
        with visit(daemon) as ada:
            one, other = ada.page, ada.tab()
            for page in (one, other):
                ada.open(f"/console/approvals/{approval}", page)
            ada.button("Approve once", one).dblclick()
            until("it is approved", lambda: state(approval) == "approved")
            # Live: the other tab says so without a reload, or refuses a click that comes before.
            buttons = other.locator("#question button[value=approve]")
            until("the other tab has no button", lambda: buttons.count() == 0 or not buttons.first.is_enabled())
        receipts = daemon.ask("GET", "/v1/receipts?q=tool:files.delete&order=newest", by="ada")[1]["receipts"]
        self.assertEqual(len([each for each in receipts if each["inputs"].get("path") == "workspace/twice.txt"]), 1)

    def test_a_stale_page_shows_what_is_different(self):
        for javascript in (False, True):
            with self.subTest(javascript=javascript), visit(daemon, javascript=javascript) as ada:
                approval = daemon.hold(f"stale-{javascript}.txt", "the first text\n")
                page = ada.page
                ada.open(f"/console/approvals/{approval}")
                (daemon.space / f"stale-{javascript}.txt").write_text("another text\n")
                ada.button("Approve once").click()
                # The action notices, and asks again: nothing was done, and the page says what is different.
                page.get_by_text("It has changed since you looked at it").wait_for()
                self.assertNotEqual(page.url.split("/")[-1], approval)
                path, again = f"workspace/stale-{javascript}.txt", "again: the tool, its connection, a rule or a file has changed since the approval"
                self.assertEqual(page.locator(".note .diff del").all_inner_texts(), [f"{path}: 15 bytes → nothing", "- the first text"])
                self.assertEqual(page.locator(".note .diff ins").all_inner_texts(), [again, f"{path}: 13 bytes → nothing", "- another text"])
                self.assertTrue((daemon.space / f"stale-{javascript}.txt").exists())
                ada.button("Approve once").click()
                until("it is done now", lambda: not (daemon.space / f"stale-{javascript}.txt").exists())

    def test_a_question_comes_and_expires_without_a_reload(self):
        short = Daemon(settings=["approvals.unattended_ms_max=6000"])
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
            page.get_by_text("Not live").wait_for()
            daemon.start()
            # Sessions of browsers are in memory: it asks who this is, and leads back.
            page.wait_for_url("**/console/login*")
            page.fill("input[name=token]", daemon.tokens["ada"])
            page.press("input[name=token]", "Enter")
            page.wait_for_url(lambda url: "login" not in url)
            ada.open(f"/console/approvals/{approval}")
            ada.button("Approve once").click()
            until("it is approved", lambda: state(approval) == "approved")
            # The browser reports the connection that was lost.
            ada.faults = [each for each in ada.faults if "ERR_" not in each and "401" not in each]

    def test_letters_of_a_reason_are_no_keys(self):
        open_question = daemon.hold("typed.txt")
        some = [daemon.ask_for_command(f"typed-{number}.txt") for number in range(2)]
        with visit(daemon) as ada:
            page = ada.page
            self.go(ada, open_question)
            page.locator(f"input[value^='{some[0]}=']").check()
            reason = page.locator("#several-reason")
            reason.press_sequentially("not ")
            # A question that comes meanwhile is shown once nobody types.
            later = daemon.hold("later.txt")
            until("the page has asked again", lambda: page.evaluate("performance.getEntriesByType('resource').some(each => each.initiatorType === 'xmlhttprequest')"))
            page.keyboard.type("at all")
            self.assertEqual(reason.input_value(), "not at all")
            self.assertEqual([state(each) for each in (open_question, later)], ["pending"] * 2)
            page.locator(f"input[value^='{some[1]}=']").check()
            page.locator("a[data-row]", has_text="later.txt").wait_for()
            self.assertEqual((reason.input_value(), page.locator("input[name=pick]:checked").count()), ("not at all", 2))

    def test_x_marks_the_question(self):
        approval = daemon.ask_for_command("marked.txt")
        with visit(daemon) as ada:
            self.go(ada, approval)
            for count in (1, 0, 1):
                ada.press("x")
                self.assertEqual(ada.page.locator("input[name=pick]:checked").count(), count)
            ada.page.locator("#several-reason").fill("marked by a key")
            ada.button("Deny marked").press("Enter")
            until("it is denied", lambda: state(approval) == "denied")
            self.assertEqual(daemon.approval(approval)["decided"]["reason"], "marked by a key")

    def test_what_ends_elsewhere_does_not_load_the_inbox_again(self):
        approval = daemon.hold("quiet.txt")
        with visit(daemon) as ada:
            self.go(ada, approval)
            asked = []
            ada.page.on("request", lambda request: asked.append(request.url) if request.resource_type == "xhr" else None)
            for _ in range(5):
                self.assertEqual(daemon.act("files.list", path="workspace")["outcome"], "executed")
            daemon.hold("quiet-after.txt")
            ada.page.locator("a[data-row]", has_text="quiet-after.txt").wait_for()
            # One for the question, and perhaps one that is due now and then.
            self.assertLessEqual(len(asked), 2)

    def test_a_late_answer_is_not_shown(self):
        first, second = [daemon.hold(f"late-{number}.txt") for number in range(2)]
        with visit(daemon) as ada:
            page = ada.page
            self.go(ada, first)
            late, waiting = [], lambda route: late.append(route) if route.request.resource_type == "xhr" else route.continue_()
            page.route(f"**/console/approvals/{first}", waiting)
            daemon.hold("late-2.txt")
            until("the page asks again", lambda: page.evaluate("1") and late)
            page.locator(f"a[href*='{second}']").click()
            page.wait_for_url(f"**/{second}")
            until("the other question is shown", lambda: page.locator("#question h1", has_text="late-1.txt").count())
            for route in late:
                route.continue_()
            # After the late answer, it asks for what is open now.
            page.locator("a[data-row]", has_text="late-2.txt").wait_for()
            self.assertIn("late-1.txt", page.locator("#question h1").inner_text())

    def test_back_and_reload_lead_where_they_should(self):
        first, second = [daemon.hold(f"back-{number}.txt") for number in range(2)]
        with visit(daemon) as ada:
            page = ada.page
            self.go(ada, first)
            ada.press("e")
            page.wait_for_url("**how=edit")
            page.get_by_label("path").fill("workspace/none-such.txt")
            ada.button("Preview").click()
            page.get_by_role("button", name="Approve with these parameters").wait_for()
            page.reload()
            self.assertEqual(page.get_by_label("path").input_value(), "workspace/back-0.txt")
            page.go_back()
            page.locator("#question h1", has_text="back-0.txt").wait_for()
            ada.button("Approve once").click()
            page.wait_for_url(f"**/{second}?did={first}")
            page.go_back()
            page.get_by_text("Decided: once").wait_for()

    def test_a_grant_is_asked_for_and_decided_in_the_inbox(self):
        wanted = {"org": ORG, "tool": "files.copy", "calls_max": 4, "reason": "the weekly <b>backup</b>"}
        ids = [daemon.ask("POST", "/v1/grants/requests", wanted, by="gil")[1]["grant_id"] for _ in range(2)]
        states = lambda: {each["grant_id"]: each["state"] for each in daemon.ask("GET", "/v1/grants", by="ada")[1]["grants"]}
        with visit(daemon, name="mia") as mia:
            mia.open(f"/console/grants/{ids[0]}")
            self.assertIn("4 calls in all of work", mia.page.locator("#question").inner_text())
            self.assertEqual(mia.page.locator("#question button").count(), 0)
        for javascript, key, verb, becomes in ((True, "a", "Activate", "active"), (False, None, "Refuse", "revoked")):
            with visit(daemon, javascript=javascript) as ada:
                page, grant = ada.page, ids.pop()
                ada.open("/")
                page.locator(f"a[data-row][href$='{grant}']").click()
                page.locator("blockquote", has_text="the weekly <b>backup</b>").wait_for()
                if key:
                    ada.press(key)
                else:
                    ada.button(verb).click()
                page.locator("#question .badge", has_text=becomes).wait_for()
                self.assertEqual(states()[grant], becomes)
                self.assertEqual(page.locator(f"a[data-row][href$='{grant}']").count(), 0)

    def test_a_batch_is_one_question_and_has_a_marker_for_each_item(self):
        def batch(name, items, **more):
            items = [{"tool_id": tool, "params": {**params, "space_id": SPACE}} for tool, params in items]
            body = {"batch_id": name, "subject_id": SUBJECT, "space_id": SPACE, "items": items, **more}
            return daemon.ask("POST", "/v1/batches?wait_ms=20000", body)

        def markers(page, receipt):
            ada.open(f"/console/actions/{receipt}")
            rows = page.locator("section[aria-labelledby=items] li")
            return [(row.get_attribute("class"), row.locator("strong").inner_text()) for row in rows.all()]

        path = "workspace/batch-new.txt"
        write = ("files.write_text", {"path": path, "text": "the first\n"})
        append = ("files.append_text", {"path": path, "text": "and the second\n"})
        (daemon.space / "batch-old.txt").write_text("short lived\n")
        delete = ("files.delete", {"path": "workspace/batch-old.txt"})
        status, asked = batch("web-batch", [write, append, delete])
        self.assertEqual((status, asked["state"]), (202, "held"), asked)
        approval = asked["approval"]["approval_id"]
        with visit(daemon) as ada:
            page = ada.page
            self.go(ada, approval)
            question = page.locator("#question").inner_text()
            # One diff of all items: what the file is after the last of them.
            for text in (path, "the first", "and the second", "workspace/batch-old.txt", "items[2]"):
                self.assertIn(text, question)
            self.assertEqual(daemon.approval(approval)["prompt"]["preview"]["shown"]["predicted"]["files"], 2)
            ada.button("Approve once").click()
            until("it has ended", lambda: ended(approval) == "executed")
            status, done = daemon.ask("GET", "/v1/batches/web-batch")
            self.assertEqual(markers(page, done["result"]["receipt_id"]), [("ok", "committed")] * 3)
            # The second item fails: the first stays, and the third does not start.
            missing = ("files.edit_text", {"path": "workspace/batch-none.txt", "find": "a", "replace": "b"})
            status, failed = batch("web-batch-fails", [append, missing, write], mode="ordered")
            self.assertEqual((status, failed["state"]), (200, "ended"), failed)
            shown = markers(page, failed["result"]["receipt_id"])
            self.assertEqual(shown, [("ok", "committed"), ("quiet", "rolled_back"), ("quiet", "not_started")])

    def test_without_javascript_it_is_plain_forms(self):
        first, second = [daemon.hold(f"plain-{number}.txt") for number in range(2)]
        with visit(daemon, width=768, javascript=False) as ada:
            page = ada.page
            ada.open("/")
            page.locator(f"a[href*='{first}']").first.click()
            ada.button("Approve once").click()
            self.assertEqual(state(first), "approved")
            ada.open(f"/console/approvals/{second}")
            page.locator("summary", has_text="Deny").click()
            page.fill("#deny-reason", "no")
            ada.button("Deny").click()
            self.assertEqual(state(second), "denied")


if __name__ == "__main__":
    unittest.main()
