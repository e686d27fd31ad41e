"""Gives a recorded session the same names in every run. The arguments are the user's home, the program and the user."""

import re
import sys

home, program, user = sys.argv[1:]
text = sys.stdin.read()
for name, plain in ((program, "/opt/effectd/effectd"), (home, "/users/ada"), (f"user://{user}", "user://ada")):
    text = text.replace(name, plain)
text = re.sub(r"(?<=/state/effectd/)[0-9a-f]{16}", "d609a9dba7e6669c", text)
text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "2026-11-18T09:00:00", text)
text = re.sub(r"(?<=00\.)\d{3}\d*(?=Z)", "000", text)
# An approval is open for a day.
text = re.sub(r"(?<=00Z  2026-11-)18", "19", text)
for shape, plain in (
    (r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "01a1eeaf-0000-7000-8000-{:012}"),
    (r"(?<=mcp-)[0-9a-f]{32}", "{:032}"),
    (r"(?<=, state )[0-9a-f]{32}", "{:032}"),
):
    ids = {}
    text = re.sub(shape, lambda found: plain.format(ids.setdefault(found[0], len(ids) + 1)), text)
sys.stdout.write(text)
