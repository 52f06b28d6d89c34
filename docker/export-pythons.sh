#!/bin/sh
# export-pythons.sh BASE PYTHONS TARGET: copy this image's CPythons to TARGET, unless it is the base itself.
set -eu

base=$1 pythons=$2 target=$3

# Never empty: docker's classic builder loses a layer that holds nothing.
mkdir -p "$target/farm"
echo "$pythons" > "$target/farm/pythons"
if [ "$base" = "$pythons" ]; then
    echo "the base has its own CPythons"
    exit 0
fi
for folder in /opt/python /opt/_internal; do
    if [ ! -d "$folder" ]; then
        echo "error: $pythons has no $folder; name a manylinux image with --build-arg PYTHONS=..." >&2
        exit 1
    fi
done
mkdir -p "$target/opt"
cp -a /opt/python /opt/_internal "$target/opt/"
