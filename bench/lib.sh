#!/usr/bin/env bash
# Functions that the benchmarks share. To be sourced, from the repository's root.

set -euo pipefail

. ./xtask/needs.sh

# median NUMBER...: null when there is none.
median() {
    if (($# == 0)); then
        printf null
        return
    fi
    printf '%s\n' "$@" | sort -g | awk '
        { value[NR] = $1 }
        END {
            text = sprintf("%.4f", NR % 2 ? value[(NR + 1) / 2] : (value[NR / 2] + value[NR / 2 + 1]) / 2)
            sub(/\.?0+$/, "", text)
            printf "%s", text
        }'
}

# largest NUMBER...: null when there is none.
largest() {
    if (($# == 0)); then
        printf null
        return
    fi
    printf '%s\n' "$@" | sort -g | tail -n 1
}

# smallest NUMBER...: null when there is none.
smallest() {
    if (($# == 0)); then
        printf null
        return
    fi
    printf '%s\n' "$@" | sort -g | sed -n 1p
}

# ratio A B: A / B, null when one of them is.
ratio() {
    if [[ "$1" == null || "$2" == null ]]; then
        printf null
        return
    fi
    awk -v a="$1" -v b="$2" 'BEGIN { if (b > 0) printf "%.2f", a / b; else printf "null" }'
}

# json_string TEXT
json_string() {
    local text="${1//\\/\\\\}"
    printf '"%s"' "${text//\"/\\\"}"
}

# warm [MB]: touches WARM_MB of memory in $work (default MB; at most 60 % of the available memory), so that page faults to the
# hypervisor are not measured. It waits SETTLE seconds (4) first, in which the machine returns freed memory to the hypervisor: that
# takes CPU time.
warm() {
    local most mb
    most="$(awk '/^MemAvailable:/ { print int($2 / 1024 * 0.6) }' /proc/meminfo)"
    mb="${WARM_MB:-${1:-$most}}"
    ((mb > 0)) || return 0
    sleep "${SETTLE:-4}"
    # shellcheck disable=SC2154 # The script that sources this file has it.
    head -c "$((mb < most ? mb : most))M" /dev/zero >"$work/warm"
    rm -- "$work/warm"
}

# stolen_since TICKS: hundredths of seconds stolen by the hypervisor since `stolen_since 0` printed TICKS.
stolen_since() {
    awk -v since="$1" '/^cpu / { print int($9) - since; exit }' /proc/stat
}
