"""What metadata says, read without running it."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from ci.integration.requirements import Metadata, RealRequirement, read_metadata
from ci.registry import REPOSITORY


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def write_and_read(**files: str) -> Metadata:
        for name, text in files.items():
            (tmp_path / name.replace("_", ".", 1)).write_text(textwrap.dedent(text), "utf-8")
        return read_metadata(tmp_path)

    return write_and_read


def texts(found: tuple[RealRequirement, ...]) -> list[str]:
    return [item.text for item in found]


def test_pyproject_gives_name_requirements_groups_and_lines(read: Any) -> None:
    found = read(
        pyproject_toml="""\
        [build-system]
        requires = ["setuptools>=64", "ninja"]
        [project]
        name = "alpha-kernels"
        dependencies = [
          "torch",
          "einops>=0.8",
        ]
        [project.optional-dependencies]
        cuda = ["triton>=3.3"]
        """
    )
    assert found.distribution == "alpha-kernels"
    assert texts(found.build) == ["setuptools>=64", "ninja"]
    assert [(item.text, item.line, item.extra) for item in found.run] == [
        ("torch", 6, ""),
        ("einops>=0.8", 7, ""),
        ("triton>=3.3", 10, "cuda"),
    ]


def test_setup_cfg_is_read(read: Any) -> None:
    found = read(
        setup_cfg="""\
        [metadata]
        name = alpha
        [options]
        install_requires =
            einops>=0.8
            filelock
        setup_requires = ninja
        [options.extras_require]
        fast = triton
        """
    )
    assert found.distribution == "alpha"
    assert [(item.text, item.line, item.extra) for item in found.run] == [
        ("einops>=0.8", 5, ""),
        ("filelock", 6, ""),
        ("triton", 9, "fast"),
    ]
    assert texts(found.build) == ["ninja"]


def test_setup_py_is_never_run(read: Any, tmp_path: Path) -> None:
    found = read(
        setup_py="""\
        from pathlib import Path
        from setuptools import setup
        (Path(__file__).parent / "it-ran").touch()
        NAME = "alpha"
        setup(name=NAME, install_requires=["torch", "einops"], setup_requires="ninja")
        """
    )
    assert not (tmp_path / "it-ran").exists()
    assert found.distribution == "alpha"
    assert texts(found.run) == ["torch", "einops"]
    assert texts(found.build) == ["ninja"]


def test_a_list_that_grows_under_conditions_is_followed(read: Any) -> None:
    found = read(
        setup_py="""\
        import setuptools
        needs = ["nothing"]
        needs = ["typing_extensions"]
        if FA4:
            needs += ["nvidia-cutlass-dsl[cu13]==4.5.2"]
        else:
            needs.append("triton")
        needs.extend(("filelock",))
        keywords = dict(name="alpha", packages=[], install_requires=needs + ["einops"])
        setuptools.setup(**keywords)
        """
    )
    assert [(item.text, item.condition, item.line) for item in found.run] == [
        ("typing_extensions", "", 3),
        ("nvidia-cutlass-dsl[cu13]==4.5.2", "FA4", 5),
        ("triton", "not (FA4)", 7),
        ("filelock", "", 8),
        ("einops", "", 9),
    ]
    assert found.unread == ()


def test_what_is_computed_is_said_to_be_unread(read: Any) -> None:
    found = read(
        setup_py="""\
        from setuptools import setup
        setup(name="a", install_requires=["einops", *from_somewhere()])
        """
    )
    assert texts(found.run) == ["einops"]
    ((place, line, why),) = [(item.place, item.line, item.why) for item in found.unread]
    assert (place, line) == ("setup.py", 2)
    assert "from_somewhere()" in why


def test_requirements_txt_stands_in_for_what_setup_py_reads_from_a_file(read: Any) -> None:
    found = read(
        setup_py="""\
        from setuptools import setup
        setup(install_requires=open("requirements.txt").read().splitlines())
        """,
        requirements_txt="""\
        # run-time
        einops>=0.8  # for rearrange
        --extra-index-url nowhere
        quack @ git+https://example.org/quack@1
        -r more.txt
        """,
        more_txt="filelock\n-r requirements.txt\n",
    )
    assert [(item.text, item.place, item.line) for item in found.run] == [
        ("einops>=0.8", "requirements.txt", 2),
        ("quack @ git+https://example.org/quack@1", "requirements.txt", 4),
        ("filelock", "more.txt", 1),
    ]
    assert found.unread == ()


def test_requirements_txt_of_a_developer_does_not_count(read: Any) -> None:
    found = read(
        pyproject_toml='[project]\nname = "a"\ndependencies = ["einops"]\n',
        requirements_txt="black==26.1.0\n",
    )
    assert texts(found.run) == ["einops"]


def test_dynamic_dependencies_name_their_file(read: Any) -> None:
    found = read(
        pyproject_toml="""\
        [project]
        name = "a"
        dynamic = ["dependencies"]
        [tool.setuptools.dynamic]
        dependencies = { file = ["run.txt"] }
        """,
        run_txt="einops\n",
        requirements_txt="black\n",
    )
    assert [(item.text, item.place) for item in found.run] == [("einops", "run.txt")]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("pyproject_toml", "[project\n", "not readable"),
        ("setup_py", "setup(\n", "not readable"),
        ("setup_cfg", "no section\n", "not readable"),
        ("requirements_txt", "==1.0\n", "is no requirement"),
    ],
)
def test_a_file_that_cannot_be_read_is_said(read: Any, name: str, text: str, words: str) -> None:
    (unread,) = read(**{name: text}).unread
    assert words in unread.why
    assert unread.place == name.replace("_", ".", 1)


def test_a_folder_without_metadata_says_nothing(tmp_path: Path) -> None:
    assert read_metadata(tmp_path) == Metadata()


def test_the_templates_say_what_their_pyproject_says() -> None:
    found = read_metadata(REPOSITORY / "packages" / "templates" / "cuda_extension")
    assert found.distribution == "fused-norm"
    assert texts(found.run) == ["apache-tvm-ffi>=0.1.9,<0.1.13"]
    assert found.unread == ()
