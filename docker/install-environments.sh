#!/bin/sh
# install-environments.sh farm X.Y         make /opt/farm from the wheelhouse
# install-environments.sh test X.Y         make /opt/test from the wheelhouse
# install-environments.sh pythons "X.Y …"  stage the tools of every CPython below /staged
#
# pip sees the wheelhouse and the hashes of the lock, and nothing else: no index, no configuration.
set -eu

what=$1 versions=$2
here=$(dirname "$0")

export PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

python_of() {
    tag=cp$(echo "$1" | tr -d .)
    python=/opt/python/$tag-$tag/bin/python
    if [ ! -x "$python" ]; then
        echo "error: there is no CPython $1 in this image ($python)" >&2
        echo "name an image that has it with --build-arg PYTHONS=..., or leave it out of PYTHON_VERSIONS" >&2
        exit 1
    fi
    # Its real folder: what is staged must not replace the link below /opt/python by a folder.
    readlink -f "$python"
}

# Byte code that carries no date and is not compared with its source: the same in every build.
compile() {
    "$1" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$2"
}

install() {
    "$1" -m pip install --quiet --no-compile --no-deps --require-hashes --only-binary :all: \
        --find-links "$here/wheelhouse" --requirement "$here/locks/$2.txt" $3
}

if [ "$what" = pythons ]; then
    mkdir -p /staged
    for version in $versions; do
        python=$(python_of "$version")
        install "$python" pythons "--ignore-installed --root /staged"
        site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        compile "$python" "/staged$site"
    done
else
    python=$(python_of "$versions")
    "$python" -m venv "/opt/$what"
    install "/opt/$what/bin/python" "$what" "--upgrade"
    compile "/opt/$what/bin/python" "/opt/$what/lib"
fi
