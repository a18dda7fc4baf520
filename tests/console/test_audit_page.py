"""The audit log, over HTTP without a browser, on each pair of backends."""

from harness.consoles import Console, ConsoleClient, cells, next_rows, text_of
from harness.servers import Server


def test_the_audit_log_can_be_filtered(operator: ConsoleClient, console: Console) -> None:
    grace = console.sign_in("Grace Hopper")
    key_id, _ = grace.create_key(name="G")
    grace.submit(f"/live/keys/{key_id}/revoke")
    page = operator.get("/live/audit?who=grace hop")
    assert cells(page, "Who") == ["Grace Hopper"] * 3 and cells(page, "What") == ["revoke key", "create key", "sign in"]
    assert cells(operator.get("/live/audit?who=grace&what=create key"), "Subject") == [f"{key_id} G"]
    assert cells(operator.get(f"/live/audit/rows?q={key_id}"), "What") == ["revoke key", "create key"]
    assert "No matching entries" in text_of(operator.get("/live/audit?who=nobody-of-that-name"))
    assert cells(operator.get("/live/audit?what=nonsense&who=grace"), "What") != []


def test_pages_of_the_audit_log_follow_each_other(server: Server, operator: ConsoleClient) -> None:
    numbers = [operator.add_pet("one of many", "staging") for _ in range(60)]
    operator.submit("/staging/animals/selected", id=[str(number) for number in numbers], to="sold")
    page = operator.get("/staging/audit?what=set status")
    rest = next_rows(operator, page)
    assert rest is not None
    assert sorted(map(int, cells(page, "Subject") + cells(rest, "Subject"))) == numbers
