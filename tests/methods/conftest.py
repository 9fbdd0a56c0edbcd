"""What xsdba answers: kept in files, or, in long tests, asked of xsdba itself."""

import pytest
from frozen import Answers


@pytest.fixture(scope="session", params=["frozen", pytest.param("live", marks=pytest.mark.long)])
def answers(request: pytest.FixtureRequest) -> Answers:
    return Answers(live=request.param == "live")
