"""A declaration file for a real torch package that is not in the registry."""

from build_utils import Artifact, EcosystemLibrary

LIBRARIES = (
    EcosystemLibrary(
        name="torch-dct",
        source_rel_path="torch-dct-is-fetched",
        artifacts=(Artifact("torch_dct", "torch_dct"),),
        module="torch_dct",
        kind="python_dsl",
        hint="guard the call with is_torch_dct_available() and use scipy.fft without it",
        public_names=("dct", "idct", "dct_2d", "LinearDCT"),
        compat_scope=("torch_dct",),
        varies_by=frozenset(),
        build_requires=("setuptools>=77", "wheel>=0.45"),
        library_set="declared",
    ),
)
