"""What stands under the name of a secret is not shown to others."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from espo_luigi.commands import cli
from espo_luigi.config import load
from espo_luigi.errors import ConfigurationError, StoreError, as_text, log_as_text
from espo_luigi.jobs.node.heartbeat import Monitor
from espo_luigi.jobs.node.run import _failure
from espo_luigi.redaction import redacted, redacted_text, without_secrets

SHIPPED = sorted((Path(__file__).parent.parent / "config").glob("*/*.yml"))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "key",
            "KEY",
            "secret",
            "token",
            "password",
            "passwd",
            "credential",
            "credentials",
            "auth",
            "pass",
            "pwd",
            "pw",
        ),
        *("aws_secret_access_key", "account_key", "sas_token", "api-key", "apikey", "Authorization", "X-Auth-Token"),
        *("accessKey", "client_secret", "connection_string", "set-cookie", "sas"),
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


def test_an_error_about_a_section_does_not_show_its_secrets(tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_text("extraction: {reference: {extract_dataset: [{storage_options: {secret: hunter2}}]}}\n")
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert "extract_dataset" in str(caught.value)
    assert "hunter2" not in str(caught.value)


ADDRESSES = [
    "https://me:hunter2@data.org/a.zarr",
    "https://hunter2@data.org",
    "s3://me:hunt@er2@bucket/a",
    "https://me:hun/ter2@data.org/a",
    "https://data.org/a.nc?sv=2020&sig=hunter2",
    "https://data.org/a.nc?X-Amz-Credential=hunter2%2F2026&X-Amz-Signature=hunter2",
    "https://data.org/a.nc?a=1&amp;access_token=hunter2&b=2",
    "https://data.org/a.nc?AWSAccessKeyId=hunter2&Signature=hunter2&Expires=1",
    "https://data.org/a#id_token=hunter2",
    "a.nc?api%5Fkey=hunter2",
    "https://me:hun@s/er2@data.org/a",
    "https://proxy/https://me:hunter2@data.org/a",
    "https://data.org/a.nc;sig=hunter2",
    "https://data.org/a.nc?token=hunt;er2&a=1",
]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize(
    "text", ["{}", "cannot open {}: gone", '{{"path": "{}", "next": 1}}', "path='{}'", "<a href={}>x"]
)
def test_the_secrets_of_an_address_are_hidden_in_any_text(text: str, address: str) -> None:
    hidden = without_secrets(text.format(address))
    assert not re.search(r"hunt|er2", hidden)
    assert "***" in hidden and hidden.count('"') == text.format(address).count('"')
    assert without_secrets(hidden) == hidden


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{'key': 'AKIA', 'anon': False}", "{'key': '***', 'anon': False}"),
        ("{'token': 12345, 'password': b'x'}", "{'token': '***', 'password': '***'}"),
        ('{"token": 12345, "max_tokens": 7, "token_count": 3}', '{"token": "***", "max_tokens": 7, "token_count": 3}'),
        ("{a: 1, key: AKIA, secret: 'x, y', b: 2}", "{a: 1, key: ***, secret: '***', b: 2}"),
        ("&#x27;password&#x27;: &#x27;abc&#x27;, &#34;pwd&#34;: &#34;x&#34;", "&#x27;password&#x27;: &#x27;***&#x27;, &#34;pwd&#34;: &#34;***&#34;"),  # noqa: E501
        ("\"error\": \"got {'token': 'abc'}\"", "\"error\": \"got {'token': '***'}\""),
        ("a text that was cut short: {'token': 'ab", "a text that was cut short: {'token': '***'"),
    ],
)  # fmt: skip
def test_a_secret_in_a_mapping_is_hidden_however_the_mapping_is_written(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize(
    "part", ["a:", ":1", "://a@", "a@://a:", "'token': '", "{token: ", ";a", "?token=1;a", "a.key"]
)
def test_a_long_text_of_others_takes_no_long_time(part: str) -> None:
    began = time.process_time()
    without_secrets("https://" + part * 20_000)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "text",
    [
        "https://data.org/a.nc?time=2000&var=pr#top",
        "https://data.org:8080/@me/a.nc, mail me@data.org",
        "https://doi.org/10.1/2?a=b",
        "x == 1 and y?=2",
        '{"key": "biasadjust.variables", "token_count": 3}',
        "tls://10.0.0.1:8786",
    ],
)
def test_a_text_without_secrets_stays(text: str) -> None:
    assert without_secrets(text) == text


@settings(deadline=None, max_examples=60)
@given(
    st.text(st.characters(codec="utf-8"), max_size=30), st.sampled_from(["secret", "aws_secret_access_key", "token"])
)
def test_options_in_a_message_or_in_json_show_no_secret_and_json_stays_json(value: str, name: str) -> None:
    content = {"storage_options": {name: value, "anon": False, "next": value}}
    shown = json.loads(without_secrets(json.dumps(content)))
    assert shown == {"storage_options": {name: "***", "anon": False, "next": without_secrets(value)}}
    # The text of a configuration in a crate is JSON inside of JSON.
    inside = json.loads(without_secrets(json.dumps({"text": json.dumps({name: "hunter2", "x": 1})})))
    assert json.loads(inside["text"]) == {name: "***", "x": 1}
    assert "hunter2" not in without_secrets(f"cannot open with {{'{name}': 'hunter2', 'anon': False}}")


def test_errors_logs_and_the_results_of_jobs_show_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    error = StoreError(f"cannot open {ADDRESSES[0]}")
    assert str(error) == "cannot open https://***@data.org/a.zarr"
    caplog.handler.addFilter(log_as_text)
    try:
        raise OSError(f"no answer from {ADDRESSES[4]}") from error
    except OSError as foreign:
        result = _failure(foreign, Monitor())
    assert "sig=***" in result["exception"] and "hunter2" not in str(result)
    assert "sig=***" in caplog.text and "hunter2" not in caplog.text


def test_an_address_with_a_secret_is_refused_where_it_would_be_published(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["publish", "--stac", "stac", "--href", ADDRESSES[0]]) == 2
    said = capfd.readouterr().err
    assert "--href https://***@data.org/a.zarr holds a password" in said and "hunter2" not in said


@pytest.mark.parametrize("name", ["auth", "pwd", "pass", "pw", "sas", "credentials", "db_pw", "x-auth"])
@pytest.mark.parametrize(
    "value", ["hunter2", ("me", "hunter2"), {"user": "me", "what": ["hunter2", {"x": "y}"}]}, b"hunter2", ["hunter2"]]
)
def test_a_secret_in_a_message_is_hidden_by_its_key_also_if_it_is_nested(name: str, value: object) -> None:
    content = {"host": "h", name: value, "port": 80}
    texts = [f"got {content}, expected another"]
    if not isinstance(value, bytes):
        texts += [f"got {json.dumps(content)}", f"got {json.dumps(json.dumps(content))}"]
    for text in texts:
        shown = without_secrets(text)
        assert "hunter2" not in shown and "***" in shown and "'h'" in shown.replace('"', "'").replace("\\", "")
        assert "80" in shown
    as_json = {**content, "keys": ["a.b"]} if not isinstance(value, bytes) else {}
    assert json.loads(without_secrets(json.dumps(as_json))) == (as_json and {**as_json, name: "***"})


def test_the_arguments_of_objects_in_messages_are_hidden_and_other_texts_stay() -> None:
    text = "BasicAuth(login='me', password='hunter2', encoding='latin1'); sorted(key='x') passes='3' compass: ok"
    assert without_secrets(text) == text.replace("hunter2", "***")
    regions = "{'key_west': {'nprocs': 4}, 'passage': {'a': 'b'}, 'author': ['me']}"
    assert without_secrets(regions) == regions
    started = time.process_time()
    without_secrets("{'auth': [" * 100_000)
    without_secrets("'auth': (" + "'" * 200_001)
    without_secrets("'auth': (" + "\\'" * 100_001)
    assert time.process_time() - started < 2


def test_what_cannot_be_seen_on_a_terminal_is_escaped_and_letters_stay() -> None:
    hidden = "a\u061cb\u200bc\u2060d\ufeffe\U000e0041f\u202eg\xadh"
    assert as_text(hidden) == r"a\u061cb\u200bc\u2060d\ufeffe\U000e0041f\u202eg\xadh"
    assert as_text("Zürich, 東京, Ελλάδα, عربى: 5 °C – µm²\n\t✓") == "Zürich, 東京, Ελλάδα, عربى: 5 °C – µm²\n\t✓"
