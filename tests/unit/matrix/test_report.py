from __future__ import annotations

import json

from ci.matrix.capability import Capability
from ci.matrix.model import Accepted, Cell, PaddleRequirement, Rejected
from ci.matrix.report import HEADERS, as_document, as_table_rows

PADDLE = PaddleRequirement("paddlepaddle-gpu>=3.3", "https://example.org/", "paddlepaddle==3.3.1")
CELL = Cell(
    cuda="12.9",
    python="3.12",
    capability_set="hopper",
    capabilities=(Capability(9, 0, "a", ptx=True),),
    image="registry/build:1",
    paddle=PADDLE,
)
DECISIONS = (
    Accepted(CELL, ("pr", "nightly")),
    Rejected("cu126-cp310", "12.6", "3.10", "", "no Paddle for it"),
)


def test_a_row_has_a_text_for_every_header() -> None:
    rows = as_table_rows(DECISIONS)
    assert [len(row.cells) for row in rows] == [len(HEADERS)] * 2


def test_rows_show_final_flags_or_the_reason() -> None:
    accepted, rejected = as_table_rows(DECISIONS)
    assert accepted.accepted
    assert accepted.cells == (
        "cu129-cp312-hopper",
        "12.9",
        "3.12",
        "hopper",
        "9.0a+PTX",
        "pr nightly",
        "arch=compute_90a,code=sm_90a arch=compute_90,code=compute_90",
    )
    assert not rejected.accepted
    assert rejected.cells == (
        "cu126-cp310",
        "12.6",
        "3.10",
        "default",
        "",
        "",
        "rejected: no Paddle for it",
    )


def test_the_document_survives_json_and_holds_both_kinds() -> None:
    assert json.loads(json.dumps(as_document(DECISIONS))) == {
        "schema": 1,
        "accepted": [
            {
                "id": "cu129-cp312-hopper",
                "cuda": "12.9",
                "cuda_label": "cu129",
                "python": "3.12",
                "python_tag": "cp312",
                "capability_set": "hopper",
                "capabilities": ["9.0a+PTX"],
                "gencode": ["arch=compute_90a,code=sm_90a", "arch=compute_90,code=compute_90"],
                "image": "registry/build:1",
                "paddle": {
                    "gpu": "paddlepaddle-gpu>=3.3",
                    "index": "https://example.org/",
                    "cpu": "paddlepaddle==3.3.1",
                },
                "tiers": ["pr", "nightly"],
            }
        ],
        "rejected": [
            {
                "id": "cu126-cp310",
                "cuda": "12.6",
                "python": "3.10",
                "capability_set": "",
                "reason": "no Paddle for it",
            }
        ],
    }
