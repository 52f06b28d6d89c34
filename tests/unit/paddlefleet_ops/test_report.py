"""``python -m paddlefleet_ops``: it prints whatever happens, and its status says whether all is well."""

from __future__ import annotations

import json

NOISY = {"alpha.py": "print('noise on standard output')\nimport torch\n"}


def fill(site, *, broken):
    site.add("alpha", NOISY)
    site.add("gated", cuda=">=12.9", capability=">=9.0", cpu_path=True)
    site.leave_out("absent", "not pinned yet")
    if broken:
        site.add("broken", {"broken.py": "import no_such_module\n"})


def test_the_table_shows_gates_states_and_reasons(site):
    fill(site, broken=True)
    done = site.python("-m", "paddlefleet_ops", STAND_IN_CUDA="12.6", STAND_IN_CAPABILITY="9.0")
    assert done.returncode == 1
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "paddlefleet_ops 0.1.0.dev20261202+cu130, built for cu130-cp312"
    assert "CUDA 12.6, compute capability 9.0" in lines[1]
    assert "alpha alpha loaded none submodule 0123456789ab" in lines
    assert (
        "gated gated blocked CUDA >=12.9, capability >=9.0 (or no GPU) submodule 0123456789ab"
        in lines
    )
    assert "needs CUDA >=12.9; found 12.6" in lines
    assert "broken broken failed none submodule 0123456789ab" in lines
    assert any(line.startswith("missing Python module: No module named") for line in lines)
    assert "absent absent blocked - -" in lines
    assert "was not built into this wheel: not pinned yet" in lines


def test_the_json_is_not_mixed_with_what_libraries_print(site):
    fill(site, broken=False)
    done = site.python("-m", "paddlefleet_ops", "--json")
    assert done.returncode == 0
    assert "noise on standard output" in done.stderr
    values = json.loads(done.stdout)
    assert [(entry["name"], entry["state"]) for entry in values["libraries"]] == [
        ("alpha", "loaded"),
        ("gated", "blocked"),
        ("absent", "blocked"),
    ]
    assert values["environment"]["cuda"] is None
    assert values["libraries"][1]["requires"]["cuda"] == ">=12.9"
    assert values["libraries"][1]["availability_function"] == "is_gated_available"
    assert values["libraries"][0]["source"]["pinned"] is True


def test_the_report_prints_also_where_the_import_would_stop(site):
    fill(site, broken=True)
    options = {"PADDLEFLEET_OPS_ON_ERROR": "raise"}
    assert site.python("-c", "import paddlefleet_ops", **options).returncode == 1
    done = site.python("-X", "utf8", "-m", "paddlefleet_ops", "--json", **options)
    states = {entry["name"]: entry["state"] for entry in json.loads(done.stdout)["libraries"]}
    assert states["broken"] == "failed"
    assert done.returncode == 1


def test_an_import_by_another_module_that_is_run_is_strict(site):
    fill(site, broken=True)
    site.write("tool.py", "import paddlefleet_ops\n")
    assert "LibraryLoadError" in site.python("-m", "tool").stderr


def test_an_empty_wheel_has_an_empty_table(site):
    done = site.python("-m", "paddlefleet_ops")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].split() == ["LIBRARY", "MODULE", "STATE", "GATE", "SOURCE"]
