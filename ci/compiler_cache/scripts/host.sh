#!/bin/sh
# A host compiler behind a compiler cache. Written by the farm.
here=@HERE@
. "$here/settings"
. "$here/places.sh"

real_home_in_variables
count=$# farm_names=
while [ "$count" -gt 0 ]; do
    word=$1
    shift
    count=$((count - 1))
    case $word in
    -E | -P) # asked for by the build, not by the cache
        farm_plain=yes
        export farm_plain
        ;;
    esac
    names
    set -- "$@" "$word"
done
through_cache "$here/behind/${0##*/}" "$@"
