"""What tells two values of a part of the configuration from each other."""

from pydantic import BaseModel, create_model

from espo_luigi.config.schema import fingerprint


class Older(BaseModel):
    a: int = 1
    b: str | None = None


class Outer(BaseModel):
    part: BaseModel


def test_an_option_that_a_later_version_adds_changes_nothing_until_somebody_says_it() -> None:
    newer = create_model("Newer", __base__=Older, c=(float | None, None))
    before = fingerprint(Outer(part=Older(a=2)), "part")
    assert fingerprint(Outer(part=newer(a=2)), "part") == before
    assert fingerprint(Outer(part=newer(a=2, c=0.5)), "part") != before
    assert fingerprint(Outer(part=Older(a=2, b=None)), "part") != before
