"""The one line of a build log that says what is wrong, in the words of real compilers."""

from __future__ import annotations

import pytest

from ci.registry import build_steps

LOGS = {
    "gcc, a name that is not declared": (
        """\
building 'pkg._core' extension
gcc -pthread -Wno-error=unused -O2 -fPIC -Iinclude -c src/core.c -o build/temp/src/core.o
src/core.c: In function 'add':
src/core.c:12:9: warning: unused variable 'error_count' [-Wunused-variable]
src/core.c:14:12: error: 'widht' undeclared (first use in this function); did you mean 'width'?
   14 |     return widht;
src/core.c:14:12: note: each undeclared identifier is reported only once for each function
error: command '/usr/bin/gcc' failed with exit code 1
  error: subprocess-exited-with-error
""",
        "src/core.c:14:12: error: 'widht' undeclared (first use in this function); did you mean 'width'?",
    ),
    "gcc, a header that is not there": (
        """\
In file included from csrc/api.cpp:3:
csrc/ops.hpp:5:10: fatal error: cutlass/cutlass.h: No such file or directory
    5 | #include <cutlass/cutlass.h>
compilation terminated.
""",
        "csrc/ops.hpp:5:10: fatal error: cutlass/cutlass.h: No such file or directory",
    ),
    "gcc, killed for memory": (
        """\
c++ -MMD -MF flash_fwd.o.d -c csrc/flash_fwd.cpp -o flash_fwd.o
c++: fatal error: Killed signal terminated program cc1plus
compilation terminated.
ninja: build stopped: subcommand failed.
""",
        "c++: fatal error: Killed signal terminated program cc1plus",
    ),
    "gcc, a bug of its own": (
        "csrc/deep.cc:88:1: internal compiler error: Segmentation fault\n",
        "csrc/deep.cc:88:1: internal compiler error: Segmentation fault",
    ),
    "gcc, a warning about an error": (
        """\
cc1: note: someone speaks of an error: not here
src/a.cc:1:1: warning: control may reach an error: label [-Wextra]
src/a.cc:9:1: error: expected '}' at end of input
""",
        "src/a.cc:9:1: error: expected '}' at end of input",
    ),
    "nvcc, an identifier": (
        """\
[1/9] nvcc -gencode arch=compute_90a,code=sm_90a -c csrc/sm90/fwd.cu -o fwd.o
csrc/sm90/fwd.cu(31): warning #177-D: variable "error" was declared but never referenced
csrc/sm90/traits.h(210): error: identifier "SM90_TMA_LOAD" is undefined
          detected during instantiation of "void run<T>(T *) [with T=cutlass::half_t]"
Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"
1 error detected in the compilation of "csrc/sm90/fwd.cu".
ninja: build stopped: subcommand failed.
""",
        'csrc/sm90/traits.h(210): error: identifier "SM90_TMA_LOAD" is undefined',
    ),
    "nvcc, an architecture": (
        "nvcc warning : Support for offline compilation for architectures prior to error\n"
        "nvcc fatal   : Unsupported gpu architecture 'compute_103a'\n",
        "nvcc fatal   : Unsupported gpu architecture 'compute_103a'",
    ),
    "nvcc, a host compiler that is too new": (
        "/opt/cuda/include/crt/host_config.h:132:2: error: #error -- unsupported GNU version! "
        "gcc versions later than 13 are not supported!\n",
        "/opt/cuda/include/crt/host_config.h:132:2: error: #error -- unsupported GNU version! "
        "gcc versions later than 13 are not supported!",
    ),
    "ptxas, shared memory": (
        """\
ptxas info    : 0 bytes gmem
ptxas warning : Too big maxrregcount value specified 300, will be ignored; no error: here
ptxas error   : Entry function '_Z3fwdv' uses too much shared data (0x3a000 bytes, 0x38c00 max)
ptxas fatal   : Ptx assembly aborted due to errors
""",
        "ptxas error   : Entry function '_Z3fwdv' uses too much shared data "
        "(0x3a000 bytes, 0x38c00 max)",
    ),
    "ptxas, a line of PTX": (
        """\
ptxas /scratch/fwd.compute_80.ptx, line 61; error   : Feature 'wgmma' requires .target sm_90a
ptxas fatal   : Ptx assembly aborted due to errors
""",
        "ptxas /scratch/fwd.compute_80.ptx, line 61; error   : Feature 'wgmma' requires "
        ".target sm_90a",
    ),
    "nvlink, a symbol twice": (
        "nvlink error   : Multiple definition of 'nvshmemi_device_state_d' in 'libnvshmem_device.a'\n",
        "nvlink error   : Multiple definition of 'nvshmemi_device_state_d' in 'libnvshmem_device.a'",
    ),
    "clang, CUDA": (
        """\
clang++: warning: CUDA version is newer than the latest partially supported version 12.8
csrc/swiglu.cu:17:3: error: use of undeclared identifier '__nanosleep'
   17 |   __nanosleep(1);
1 error generated when compiling for sm_80.
""",
        "csrc/swiglu.cu:17:3: error: use of undeclared identifier '__nanosleep'",
    ),
    "clang, no toolkit": (
        "clang++: error: cannot find libdevice for sm_90; provide path to different CUDA "
        "installation via '--cuda-path'\n",
        "clang++: error: cannot find libdevice for sm_90; provide path to different CUDA "
        "installation via '--cuda-path'",
    ),
    "linker, a library": (
        """\
/usr/bin/ld: cannot find -lnvshmem_host: No such file or directory
collect2: error: ld returned 1 exit status
error: command '/usr/bin/g++' failed with exit code 1
""",
        "/usr/bin/ld: cannot find -lnvshmem_host: No such file or directory",
    ),
    "linker, a symbol": (
        """\
/usr/bin/ld: api.o: in function `run()':
api.cpp:(.text+0x5): undefined reference to `cuLaunchKernelEx'
collect2: error: ld returned 1 exit status
""",
        "api.cpp:(.text+0x5): undefined reference to `cuLaunchKernelEx'",
    ),
    "lld, a symbol": (
        """\
ld.lld: error: undefined symbol: cuLaunchKernelEx
clang++: error: linker command failed with exit code 1 (use -v to see invocation)
""",
        "ld.lld: error: undefined symbol: cuLaunchKernelEx",
    ),
    "ninja, a file in between": (
        """\
[1/2] c++ -c a.cpp -o a.o
FAILED: [code=1] a.o
c++ -c a.cpp -o a.o
a.cpp:1:1: error: 'nosuch' does not name a type
[2/2] c++ -c b.cpp -o b.o
ninja: build stopped: subcommand failed.
""",
        "a.cpp:1:1: error: 'nosuch' does not name a type",
    ),
    "ninja itself": (
        "ninja: error: 'csrc/gone.cu', needed by 'gone.o', missing and no known rule to make it\n",
        "ninja: error: 'csrc/gone.cu', needed by 'gone.o', missing and no known rule to make it",
    ),
    "CMake": (
        """\
-- The CXX compiler identification is GNU 12.2.0
CMake Warning at CMakeLists.txt:3 (message): an error: maybe
CMake Error at CMakeLists.txt:12 (find_package):
  Could not find a package configuration file provided by "pybind11"
-- Configuring incomplete, errors occurred!
""",
        "CMake Error at CMakeLists.txt:12 (find_package):",
    ),
    "an exception of setup.py": (
        """\
Traceback (most recent call last):
  File "<string>", line 3, in <module>
ModuleNotFoundError: No module named 'torch'
error: metadata-generation-failed
""",
        "ModuleNotFoundError: No module named 'torch'",
    ),
    "an exception of a package's own": (
        "paddle.errors.UnimplementedError: no kernel for this place\n",
        "paddle.errors.UnimplementedError: no kernel for this place",
    ),
    "distutils' own": (
        "error: invalid command 'bdist_wheel'\n",
        "error: invalid command 'bdist_wheel'",
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_first_line_that_says_what_is_wrong_is_found(name: str) -> None:
    log, expected = LOGS[name]
    assert build_steps.first_compiler_error(log) == expected


@pytest.mark.parametrize("name", LOGS)
def test_what_pip_puts_in_front_of_each_line_does_not_hide_it(name: str) -> None:
    log, expected = LOGS[name]
    indented = "".join(f"      {line}\n" for line in log.splitlines())
    assert build_steps.first_compiler_error(indented) == expected


@pytest.mark.parametrize(
    "log",
    [
        "",
        "Successfully installed alpha-1.0\n",
        "gcc -Werror=format -DON_ERROR=1 -c src/error.c -o build/error.o\n",
        "copying src/errors.py -> build/lib/pkg/errors.py\n",
        "copying pkg/fatal error.txt\n",
        "src/a.c:3:1: note: this error is only a note\n",
        "error: subprocess-exited-with-error\n",
        "  ERROR: Failed building wheel for alpha\n",
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n",
        "distutils.errors.CompileError: command '/usr/bin/gcc' failed with exit code 1\n",
    ],
)
def test_a_log_that_names_no_error_gives_none(log: str) -> None:
    assert build_steps.first_compiler_error(log) == ""
