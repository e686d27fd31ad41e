"""Writes a file by the client that openapi-python-client generated, and parses the receipt. The argument is the address."""

import re
import sys

from effectd_client import Client
from effectd_client.api.actions import actions_submit
from effectd_client.api.receipts import receipts_show
from effectd_client.models import ActionRequest, ActionView, FilesWriteTextParams, Outcome, Problem, Receipt


def without_times(value):
    """Python's times are exact to a microsecond only."""
    if isinstance(value, dict):
        return {name: without_times(member) for name, member in value.items()}
    if isinstance(value, list):
        return [without_times(item) for item in value]
    is_time = isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\dT", value)
    return "a time" if is_time else value


client = Client(base_url=sys.argv[1])
space = "shared:household"
params = FilesWriteTextParams(path="workspace/client.txt", text="hello", space_id=space)
request = ActionRequest.from_dict({
    "action_id": "generated-client",
    "subject_id": "agent://planner@deviceA",
    "space_id": space,
    "tool_id": "files.write_text",
    "params": params.to_dict(),
})
answer = actions_submit.sync(client=client, body=request, wait="true")
assert isinstance(answer, ActionView) and isinstance(answer.receipt, Receipt), answer
receipt_id = answer.receipt.receipt_id
shown = receipts_show.sync(receipt_id, client=client)
assert isinstance(shown, Receipt) and shown.outcome == Outcome.EXECUTED, shown
# The types lose nothing of it.
raw = client.get_httpx_client().get(f"/v1/receipts/{receipt_id}").json()
assert without_times(shown.to_dict()) == without_times(raw), (shown.to_dict(), raw)
refused = receipts_show.sync("none", client=client)
assert isinstance(refused, Problem) and refused.code == "receipt_unknown", refused
