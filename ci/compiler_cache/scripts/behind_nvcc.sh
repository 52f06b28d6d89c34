#!/bin/sh
# What a compiler cache takes for nvcc. Written by the farm.
here=${0%/*}/..
. "$here/settings"
. "$here/places.sh"

restore
case "${farm_names-} $* " in
"yes "*" --dryrun "*) ;;
*) exec "$real_nvcc" "$@" ;;
esac
# The commands of nvcc's own programs name the source; they only read it through what was preprocessed.
exec 4>&1 5>&2
status=$({ { "$real_nvcc" "$@" 2>&1 >&4 3>&-; echo $? >&3; } | sed -e "$commands" >&5; } 3>&1)
exit "$status"
