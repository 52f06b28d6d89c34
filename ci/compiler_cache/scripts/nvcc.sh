#!/bin/sh
# nvcc behind a compiler cache. Written by the farm.
here=@HERE@
. "$here/settings"
. "$here/places.sh"

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
    --jobserver | -jobserver) continue ;;
    -lineinfo | --generate-line-info | -src-in-ptx | --source-in-ptx) lines=yes ;;
    -G | --device-debug | -g | --debug) lines=yes ;;
    "$here"/bin/*) word=$here/behind/${word##*/} ;;
    -ccbin="$here"/bin/* | --compiler-bindir="$here"/bin/*) word=${word%%=*}=$here/behind/${word##*/} ;;
    esac
    names
    set -- "$@" "$word"
done
for variable in NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS; do
    eval "word=\${$variable-}"
    [ -n "$word" ] || continue
    read_list
    names
    export "$variable=$word"
done
case ${NVCC_CCBIN-} in
"$here"/bin/*)
    NVCC_CCBIN=$here/behind/${NVCC_CCBIN##*/}
    export NVCC_CCBIN
    ;;
esac
farm_names=
if [ -n "$mapped" ] && [ -z "$lines" ]; then
    farm_names=yes
    export farm_names
fi
through_cache "$here/behind/nvcc" "$@"
