"""Writes a file by the client that openapi-python-client generated, and parses the receipt. The arguments are the address and, where
a token is needed, the file of the authority."""

import os
import re
import ssl
import sys

from effectd_client import AuthenticatedClient, Client
from effectd_client.api.actions import actions_submit
from effectd_client.api.receipts import receipts_list, receipts_show
from effectd_client.models import ActionRequest, ActionView, FilesWriteTextParams, Outcome, Problem, Receipt


def without_times(value):
    """Python's times are exact to a microsecond only."""
    if isinstance(value, dict):
        return {name: without_times(member) for name, member in value.items()}
    if isinstance(value, list):
        return [without_times(item) for item in value]
    is_time = isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\dT", value)
    return "a time" if is_time else value


address, *authority = sys.argv[1:]


def with_token(token):
    trusted = ssl.create_default_context(cafile=authority[0])
    return AuthenticatedClient(base_url=address, token=token, verify_ssl=trusted)


client = with_token(os.environ["EFFECTD_TOKEN"]) if authority else Client(base_url=address)
action = "client-with-token" if authority else "client-at-socket"
space = "shared:household"
params = FilesWriteTextParams(path=f"workspace/{action}.txt", text="hello", space_id=space)
request = ActionRequest.from_dict({
    "action_id": action,
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
listed = receipts_list.sync(client=client)
assert receipt_id in [receipt.receipt_id for receipt in listed.receipts], listed
refused = receipts_show.sync("none", client=client)
assert isinstance(refused, Problem) and refused.code == "receipt_unknown", refused
if authority:
    refused = receipts_show.sync(receipt_id, client=with_token("efd_user_wrong"))
    assert isinstance(refused, Problem) and refused.code == "unauthenticated", refused
