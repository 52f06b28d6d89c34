#!/bin/sh
# nvcc behind a compiler cache. Written by the farm.
here=@HERE@
. "$here/settings"
. "$here/places.sh"

# host BEFORE: BEFORE and the compiler of this name behind the launcher in $word.
host() {
    if [ -n "$caches_nvcc" ]; then
        word=$1$here/behind/${word##*/}
    elif [ "${word##*/}" = "$name_cc" ]; then
        word=$1$real_cc
    else
        word=$1$real_cxx
    fi
}

# In $word, a list of options: whether lines get into device code, and nothing that only schedules.
read_list() {
    word=" $word "
    case $word in
    *" -lineinfo "* | *" --generate-line-info "* | *" -src-in-ptx "* | *" --source-in-ptx "*) lines=yes ;;
    *" -G "* | *" --device-debug "* | *" -g "* | *" --debug "*) lines=yes ;;
    esac
    case $word in
    *" --jobserver "*) word="${word%%" --jobserver "*} ${word#*" --jobserver "}" ;;
    *" -jobserver "*) word="${word%%" -jobserver "*} ${word#*" -jobserver "}" ;;
    esac
}

real_home_in_variables
mapped= lines= count=$#
while [ "$count" -gt 0 ]; do
    word=$1
    shift
    count=$((count - 1))
    case $word in
    --jobserver | -jobserver) [ -z "$caches_nvcc" ] || continue ;;
    -lineinfo | --generate-line-info | -src-in-ptx | --source-in-ptx) lines=yes ;;
    -G | --device-debug | -g | --debug) lines=yes ;;
    "$here"/bin/*) host "" ;;
    -ccbin="$here"/bin/* | --compiler-bindir="$here"/bin/*) host "${word%%=*}=" ;;
    esac
    if [ -n "$caches_nvcc" ]; then names; else real_home; fi
    set -- "$@" "$word"
done
for variable in NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS; do
    eval "word=\${$variable-}"
    [ -n "$word" ] || continue
    if [ -n "$caches_nvcc" ]; then
        read_list
        names
    else
        real_home
    fi
    export "$variable=$word"
done
case ${NVCC_CCBIN-} in
"$here"/bin/*)
    word=$NVCC_CCBIN
    host ""
    NVCC_CCBIN=$word
    export NVCC_CCBIN
    ;;
esac
[ -n "$caches_nvcc" ] || exec "$real_nvcc" "$@"
farm_names=
if [ -n "$mapped" ] && [ -z "$lines" ]; then
    farm_names=yes
    export farm_names
fi
through_cache "$here/behind/nvcc" "$@"
