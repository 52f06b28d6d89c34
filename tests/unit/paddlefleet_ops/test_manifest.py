"""The manifest is read into typed values, or refused with what is wrong."""

from __future__ import annotations

import json

import pytest


def test_entries_become_values_in_load_order(manifest_of, entry):
    manifest = manifest_of(
        entry("deep-ep", module="deep_ep", modules=["deep_ep_cpp", "deep_ep"], capability=">=9.0"),
        entry("quack", public_names=["rmsnorm", "quack.softmax:softmax"]),
    )
    assert [library.name for library in manifest.libraries] == ["deep-ep", "quack"]
    assert manifest.libraries[0].modules == ("deep_ep", "deep_ep_cpp")
    assert manifest.libraries[0].requires.capability == ">=9.0"
    assert manifest.libraries[1].public_names == ("rmsnorm", "quack.softmax:softmax")
    assert manifest.libraries[1].source.pinned is True
    assert manifest.cell.id == "cu130-cp312"


def test_conditions_survive_the_way_through_json(part):
    requires = part("_requires").Requires(">=12.9", ">=3.12,<3.14", ">=9.0", cpu_path=True)
    values = json.loads(json.dumps(requires.as_dict()))
    assert part("_requires").Requires.from_dict(values) == requires


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "Expecting value"),
        ("[]", "not an object"),
        ('{"schema": 2}', "its schema is 2, this loader reads 1"),
        ('{"schema": 1}', "the key 'version' is missing"),
    ],
)
def test_an_unreadable_manifest_says_why_and_what_to_do(part, data, why):
    manifest = part("_manifest")
    with pytest.raises(manifest.ManifestError, match=why) as caught:
        manifest.parse_manifest(data)
    assert isinstance(caught.value, ImportError)
    assert "pip install" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"requires": {"cuda": "12.9"}}, "not a condition: '12.9'"),
        ({"compat_scope": "quack"}, "'compat_scope' is the text 'quack'"),
    ],
)
def test_a_wrong_value_of_a_library_is_named(part, manifest_of, entry, changes, why):
    with pytest.raises(part("_manifest").ManifestError, match=why):
        manifest_of(entry("quack", **changes))
