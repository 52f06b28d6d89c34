#!/bin/sh
# What a compiler cache takes for the host compiler. Written by the farm.
here=${0%/*}/..
. "$here/settings"
. "$here/places.sh"

count=$# preprocess= without_lines= output=
while [ "$count" -gt 0 ]; do
    word=$1
    shift
    count=$((count - 1))
    case $word in
    -E) preprocess=yes ;;
    -P) without_lines=yes ;;
    -o*) output=yes ;;
    esac
    folders
    # Without lines, a change of lines would not be seen: the cache's own -P is left out.
    [ "$word" = -P ] && [ -z "${farm_plain-}" ] || set -- "$@" "$word"
done
case ${0##*/} in
"$name_cc") real=$real_cc ;;
*) real=$real_cxx ;;
esac
if [ -n "${farm_plain-}" ] || [ -z "$preprocess" ] || [ -n "$output" ]; then
    exec "$real" "$@"
fi
# What is compared: the compiler's output with names in the place of folders, and its status.
exec 4>&1
status=$({ { "$real" "$@" 3>&- 4>&-; echo $? >&3; } | sed -e "$compare" >&4; } 3>&1)
exit "$status"
