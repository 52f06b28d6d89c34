#!/bin/sh
# What a compiler cache takes for the host compiler. Written by the farm.
here=${0%/*}/..
. "$here/settings"
. "$here/places.sh"

restore
count=$# preprocess= output= expect= script=$moment
while [ "$count" -gt 0 ]; do
    word=$1
    shift
    count=$((count - 1))
    case $expect$word in
    output*)
        output=$word
        expect=
        ;;
    -E) preprocess=yes ;;
    -P) # the cache's own: without lines, a change of lines would not be seen
        [ -n "${farm_plain-}" ] || continue
        ;;
    -o) expect=output ;;
    -o*) output=${word#-o} ;;
    -ffile-prefix-map=/_farm/[1-6]*)
        name=${word#*=}
        name=${name%=*}
        case ${farm_names-} in yes) set -- "$@" "$word" ;; esac
        folders
        place=${word#*=}
        script="$script
s|^\\(# [0-9]* \"\\)$(literal "${place%=*}")\\([/\"]\\)|\\1$name\\2|"
        ;;
    *) folders ;;
    esac
    set -- "$@" "$word"
done
case ${0##*/} in
"$name_cc") real=$real_cc ;;
*) real=$real_cxx ;;
esac
if [ -n "${farm_plain-}" ] || [ -z "$preprocess" ]; then
    exec "$real" "$@"
fi
if [ -n "$output" ]; then
    "$real" "$@" || exit
    if [ -n "${farm_names-}" ]; then
        # For nvcc's own programs: names in the place of folders, unless the text may ask for its file's name.
        grep -q -e __builtin_FILE -e __builtin_source_location "$output" && exit 0
    elif [ "$tool" = sccache ]; then
        exit 0
    fi
    sed -i -e "$script" "$output"
    exit
fi
# What is compared: by sccache here, by ccache above.
exec 4>&1
status=$({ { "$real" "$@" 3>&- 4>&-; echo $? >&3; } | sed -e "$script" >&4; } 3>&1)
exit "$status"
