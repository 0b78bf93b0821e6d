"""Whom a token stands for and what they may see, as the API server tells, and what happens if it does not."""

import pytest

from extender.kube.access import Access, User
from extender.kube.client import ApiError, Client
from tests.fakes.apiserver import FakeApiServer


@pytest.fixture
def access(client: Client) -> Access:
    return Access(client, timeout=1.0)


async def test_a_token_is_the_user_that_the_api_server_says(server: FakeApiServer, access: Access) -> None:
    server.users["abc"] = {"username": "ada", "uid": "7", "groups": ["ml"], "extra": {"scope": ["x"]}}
    assert await access.user("abc") == User("ada", "7", ["ml"], {"scope": ["x"]})
    assert await access.user("abd") is None


async def test_a_review_without_a_name_is_nobody(server: FakeApiServer, access: Access) -> None:
    server.users["abc"] = {"groups": ["system:masters"]}
    assert await access.user("abc") is None


async def test_a_right_holds_for_its_verb_resource_and_namespace_alone(
    server: FakeApiServer, access: Access
) -> None:
    server.rights = {("ada", "list", "pods", "ml"), ("ada", "get", "fairnesspolicies.kvitej.io", "")}
    ada = User("ada", groups=["x"])
    assert await access.may(ada, "list", "pods", namespace="ml")
    assert await access.may(ada, "get", "fairnesspolicies", group="kvitej.io")
    assert not await access.may(ada, "list", "pods", namespace="web")
    assert not await access.may(ada, "get", "pods", namespace="ml")
    assert not await access.may(ada, "get", "fairnesspolicies")
    assert not await access.may(User("bob"), "list", "pods", namespace="ml")


@pytest.mark.parametrize("trouble", [403, 500, "drop"])
async def test_without_an_answer_nothing_is_granted(
    server: FakeApiServer, access: Access, trouble: int | str
) -> None:
    server.users["abc"] = {"username": "ada"}
    server.rights = {("ada", "list", "pods", "ml")}
    server.before_write = {"tokenreviews": trouble, "subjectaccessreviews": trouble}
    with pytest.raises(ApiError):
        await access.user("abc")
    with pytest.raises(ApiError):
        await access.may(User("ada"), "list", "pods", namespace="ml")
