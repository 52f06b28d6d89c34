# Read by the other scripts here, behind the settings.

# swap FROM TO: in $word, wherever a path ends behind FROM, or goes on to a file below it.
swap() {
    head=
    while :; do
        case $word in
        *"$1"*) ;;
        *) break ;;
        esac
        rest=${word#*"$1"}
        case $rest in
        '' | [=/,:\;\"\'\ ]*) head=$head${word%%"$1"*}$2 ;;
        *) head=$head${word%%"$1"*}$1 ;;
        esac
        word=$rest
    done
    word=$head$word
}

# The real CUDA home in the place of the one of links.
real_home() {
    case $word in
    *"$overlay"*)
        swap "$overlay_real" "$home_real"
        swap "$overlay" "$home"
        ;;
    esac
}

# Names in the place of folders, in options that map folders. Says whether the sources are mapped.
names() {
    real_home
    case $word in
    *-prefix-map=*)
        case $word in *-ffile-prefix-map="$source"=*) mapped=yes ;; esac
        swap "$place1" /_farm/1
        swap "$place2" /_farm/2
        swap "$place3" /_farm/3
        swap "$place4" /_farm/4
        swap "$place5" /_farm/5
        swap "$place6" /_farm/6
        ;;
    esac
}

# Folders in the place of names.
folders() {
    case $word in
    */_farm/[1-6]*)
        swap /_farm/1 "$place1"
        swap /_farm/2 "$place2"
        swap /_farm/3 "$place3"
        swap /_farm/4 "$place4"
        swap /_farm/5 "$place5"
        swap /_farm/6 "$place6"
        ;;
    esac
}

# literal TEXT: as a regular expression of sed between bars.
literal() {
    printf '%s' "$1" | sed 's/[].|*^$\\[]/\\&/g'
}

# What gcc reads beside its options.
real_home_in_variables() {
    for variable in CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH; do
        eval "word=\${$variable-}"
        case $word in
        *"$overlay"*)
            real_home
            export "$variable=$word"
            ;;
        esac
    done
}

# Variables that compilers read and sccache does not hand on: gcc puts them into objects. And those that only
# sccache's server is to know, which asks compilers for their version with its own.
restore() {
    unset $hidden none
    if [ -n "${farm_epoch-}" ]; then
        SOURCE_DATE_EPOCH=$farm_epoch
        export SOURCE_DATE_EPOCH
    fi
    if [ -n "${farm_pwd-}" ]; then
        PWD=$farm_pwd
        export PWD
    fi
}

# started PROGRAM OPTIONS: its status in $status; messages get the folders back.
started() {
    if [ -z "${farm_names-}" ]; then
        status=0
        "$@" || status=$?
    else
        exec 4>&1 5>&2
        status=$({ { "$@" 2>&1 >&4 3>&-; echo $? >&3; } | sed -e "$readable" >&5; } 3>&1)
        exec 4>&- 5>&-
    fi
}

# through_cache COMPILER OPTIONS: with the cache as long as its server lives.
through_cache() {
    if [ "$tool" != sccache ]; then
        CCACHE_COMPILERCHECK="string:$identity"
        export CCACHE_COMPILERCHECK
        exec "$cache" "$@"
    fi
    farm_epoch=${SOURCE_DATE_EPOCH-} farm_pwd=${PWD-}
    SCCACHE_C_CUSTOM_CACHE_BUSTER=$identity
    export farm_epoch farm_pwd SCCACHE_C_CUSTOM_CACHE_BUSTER
    if kill -0 "$server" 2>/dev/null; then
        started "$cache" "$@"
        if [ "$status" -eq 0 ] || kill -0 "$server" 2>/dev/null; then exit "$status"; fi
    fi
    # It is gone; what it left running may still write the same object.
    kill -KILL -- "-$server" 2>/dev/null
    started "$@"
    exit "$status"
}
