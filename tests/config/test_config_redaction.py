"""What stands under the name of a secret is not shown to others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from espo_luigi.config import load
from espo_luigi.config.redaction import redacted, redacted_text
from espo_luigi.errors import ConfigurationError

SHIPPED = sorted((Path(__file__).parent.parent.parent / "config").glob("*/*.yml"))


@pytest.mark.parametrize(
    "name",
    [
        *("key", "KEY", "secret", "token", "password", "passwd", "credential", "credentials", "auth", "pass", "pwd"),
        *("aws_secret_access_key", "account_key", "sas_token", "api-key", "apikey", "Authorization", "X-Auth-Token"),
        *("accessKey", "client_secret", "connection_string", "set-cookie"),
    ],
)
def test_a_secret_is_hidden_by_its_key_however_deep(name: str) -> None:
    content = {"storage_options": [{"client_kwargs": {"headers": {name: "hunter2", "host": "h"}}}]}
    hidden = {"storage_options": [{"client_kwargs": {"headers": {name: "***", "host": "h"}}}]}
    assert redacted(content) == hidden
    for text in (json.dumps(content), yaml.safe_dump(content)):
        assert yaml.safe_load(redacted_text(text)) == hidden


def test_a_mapping_or_a_list_of_secrets_and_the_user_of_a_url_are_hidden() -> None:
    content = {"token": {"id": "hunter2"}, "keys": ["me", "hunter2"], "proxy": "http://me:hunter2@proxy:80/x"}
    assert redacted(content) == {"token": "***", "keys": "***", "proxy": "http://***@proxy:80/x"}
    assert "hunter2" not in str(redacted(content)) + redacted_text(yaml.safe_dump(content))


def test_names_that_only_look_like_those_of_secrets_are_shown() -> None:
    content: dict[str, Any] = {
        "custom": {"regions": {"key_west": {"nprocs": 4}}},
        "flags": {"check_valid": {"key": "standard_name", "expected": "air_temperature"}},
        "attrs": {"author": "me", "keywords": "climate", "monkey": "a", "passage": "b", "sasha": "c"},
    }
    assert redacted(content) == content
    assert redacted_text(yaml.safe_dump(content)) == yaml.safe_dump(content)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_nothing_is_hidden_in_the_configurations_that_come_with_the_package(file: Path) -> None:
    assert redacted_text(file.read_text()) == file.read_text()


def test_the_text_of_a_file_keeps_its_comments_blocks_and_anchors() -> None:
    text = (
        "# mine\nbase: &b {token: 'hunter2', x: 1}  # é\nlong:\n  secret: |\n    hunter2\n    more\n  next: 2\n"
        'other: {<<: *b, password: "hunter2"}\nempty:\n  key:\nlast: {key: hunter2}'
    )
    hidden = redacted_text(text)
    assert "hunter2" not in hidden
    assert hidden.startswith('# mine\nbase: &b {token: "***", x: 1}  # é\n')
    assert yaml.safe_load(hidden) | {"empty": 0} == {
        "base": {"token": "***", "x": 1},
        "long": {"secret": "***", "next": 2},
        "other": {"token": "***", "x": 1, "password": "***"},
        "empty": 0,
        "last": {"key": "***"},
    }


def test_a_text_that_is_no_yaml_is_hidden_as_a_whole() -> None:
    assert redacted_text("token: [hunter2") == "***"


def test_an_error_about_a_section_does_not_show_its_secrets(write: Any) -> None:
    path = write("extraction: {reference: {extract_dataset: [{storage_options: {secret: hunter2}}]}}\n")
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert "extract_dataset" in str(caught.value)
    assert "hunter2" not in str(caught.value)
