#!/bin/sh
# Runs everything worth knowing about a machine with a GPU, most valuable first. Needs the gpuctl binary, no compiler.
#
#   gpu.sh BINARY [OUTDIR] [--device LIST] [--phase NAME] [--for SECONDS] [--quick] [--list]
#
# OUTDIR (default gpuctl-gpu) receives a few files: environment.txt, phases.txt, records.json (a stream of JSON values),
# output.txt, thresholds.toml, profile.toml, race.json. tests/report-from OUTDIR makes a report of them.
# Every phase takes at most 8 minutes (stress-20 and stress-hour: 20 and 60) and is on disk when it ends. A phase that has
# ended is skipped by a later call, one that ran out of time or crashed is tried again. A phase that fails does not stop the
# next.
#
#   --device LIST   devices to use instead of the CPU and every real GPU, e.g. cpu,opencl:0 for a rehearsal
#   --phase NAME    only this phase, even if it has ended before; stress-20 and stress-hour run in no other way
#   --for SECONDS   begin no phase after so many seconds; call again for the rest
#   --quick         the same phases with tiny budgets: shows that everything works, measures nothing
#
# Exit code: 0 every phase ended as it should; 1 a phase failed or found something; 2 usage; 3 no GPU, or phases left.
# Managed memory is never oversubscribed: that can hang a card.

set -u

PHASES="devices verify-smoke bench calibrate stress bench-all calibrate-long verify-full stress-long race"
NAMED="stress-20 stress-hour"
PHASE_LIMIT_S=480
SOAK_LIMIT_S=4200
MAX_BYTES=2000000
MAX_DOCUMENT=128000000

say() { printf 'gpu.sh: %s\n' "$*"; }
usage() { sed -n '4p' "$0" | sed 's/^# *//' >&2; exit 2; }

binary="" out="" device="" only="" span="" quick=0
while [ $# -gt 0 ]; do
    case "$1" in
        --list) printf '%s\n' "$PHASES" | tr ' ' '\n'; exit 0 ;;
        --quick) quick=1 ;;
        --device | --phase | --for)
            [ $# -ge 2 ] || { say "$1 needs a value" >&2; usage; }
            case "$1" in --device) device=$2 ;; --phase) only=$2 ;; --for) span=$2 ;; esac
            shift ;;
        -*) say "unknown option '$1'" >&2; usage ;;
        *)
            if [ -z "$binary" ]; then binary=$1
            elif [ -z "$out" ]; then out=$1
            else say "one argument too many: '$1'" >&2; usage; fi ;;
    esac
    shift
done
[ -n "$binary" ] || usage
out=${out:-gpuctl-gpu}
case "$span" in *[!0-9]*) say "--for '$span': whole seconds are expected" >&2; exit 2 ;; esac
case " $PHASES $NAMED " in
    *" ${only:-devices} "*) ;;
    *) say "no phase '$only'; there are: $PHASES $NAMED" >&2; exit 2 ;;
esac
case "$binary" in */*) ;; *) binary=$(command -v "$binary" || echo "$binary") ;; esac
[ -x "$binary" ] || { say "'$binary' is not an executable file" >&2; exit 2; }
binary=$(cd "$(dirname "$binary")" && pwd)/$(basename "$binary")
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out" && out=$(cd "$out" && pwd) || { say "cannot make the folder '$out'" >&2; exit 2; }
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
begun=$(date +%s)

# limited SECONDS COMMAND...: 124 when the time is up. SIGINT first: gpuctl then writes what it has.
limited() {
    seconds=$1
    shift
    if command -v timeout > /dev/null 2>&1; then
        timeout -s INT -k 20 "$seconds" "$@"
        return
    fi
    "$@" &
    child=$!
    (
        sleep "$seconds"
        kill -INT "$child" 2> /dev/null && sleep 20 && kill -KILL "$child" 2> /dev/null
    ) &
    watcher=$!
    wait "$child"
    code=$?
    kill "$watcher" 2> /dev/null
    return "$code"
}

environment() {
    {
        for command in "date -u +%Y-%m-%dT%H:%M:%SZ" "uname -srm" "lscpu" "free -b" "cat /etc/os-release" \
            "nvidia-smi -q" "rocm-smi" "clinfo -l" "$binary --version"; do
            printf '## %s\n' "$command" | sed "s|$binary|gpuctl|"
            # shellcheck disable=SC2086  # a command and its words
            limited 30 $command 2>&1 < /dev/null | head -c 400000
        done
        printf '## sha256sum gpuctl\n'
        (sha256sum "$binary" || shasum -a 256 "$binary") 2> /dev/null | cut -d' ' -f1
    } > "$out/environment.txt"
}

# g SUBCOMMAND...: gpuctl on the devices asked for; its document is kept, whatever the exit code.
g() {
    documents=$((documents + 1))
    command=$1
    shift
    case "$command" in
        devices) ;;
        *) [ -z "$device" ] || set -- "$@" --device "$device" ;;
    esac
    printf '$ gpuctl %s\n' "$command $*" >> "$tmp/text"
    if [ "$into" = - ]; then
        limited "$PHASE_LIMIT_S" "$binary" "$command" "$@" --json "$tmp/document.$documents" \
            >> "$tmp/text" 2>&1 < /dev/null
    else
        limited "$PHASE_LIMIT_S" "$binary" "$command" "$@" --json "$tmp/document.$documents" \
            > "$into" 2>> "$tmp/text" < /dev/null
    fi
}

# pick FULL QUICK: the words for this run.
pick() { if [ "$quick" -eq 1 ]; then echo "$2"; else echo "$1"; fi; }

run_phase() {
    # shellcheck disable=SC2046  # pick gives words
    case "$1" in
        devices) g devices --why && g devices --ops ;;
        verify-smoke) g verify $(pick "" "--op relu,sum --dtype f32") ;;
        # The user's three commands, word for word where nothing else was asked for.
        bench) g bench --op gemm $(pick "--sizes 128..4096" "--sizes 64..128 --budget 1s") ;;
        calibrate)
            into=$tmp/profile
            soft=""
            [ -z "$device" ] || soft="--allow-software"
            g calibrate $soft $(pick "" "--op add --budget 10s") && mv "$tmp/profile" "$out/thresholds.toml" ;;
        stress) g stress --no-journal $(pick "--hours 0.01" "--seconds 5") ;;
        bench-all) g bench --op all --residency $(pick "all --budget 2s" "always --dtype f32 --sizes 64 --budget 100ms") ;;
        calibrate-long)
            into=$tmp/profile
            soft=""
            [ -z "$device" ] || soft="--allow-software"
            g calibrate $soft $(pick "--dtype f32,f64 --budget 6m" "--op add --dtype f32,f64 --budget 10s") \
                && mv "$tmp/profile" "$out/profile.toml" ;;
        verify-full) g verify --tier full $(pick "" "--op relu --dtype f32") ;;
        stress-long) g stress --no-journal $(pick "--minutes 3" "--seconds 5") ;;
        stress-20)
            PHASE_LIMIT_S=$SOAK_LIMIT_S
            g stress --no-journal $(pick "--minutes 20" "--seconds 5") ;;
        stress-hour)
            PHASE_LIMIT_S=$SOAK_LIMIT_S
            g stress --no-journal $(pick "--minutes 60" "--seconds 5") ;;
        race)
            race=$here/../benches/compare/race_torch.py
            if [ ! -f "$race" ]; then
                echo "not run: benches/compare/race_torch.py is not beside this script" >> "$tmp/text"
            elif ! python3 -c 'import torch' 2> /dev/null; then
                echo "not run: python3 has no torch here" >> "$tmp/text"
            else
                # shellcheck disable=SC2086
                limited "$PHASE_LIMIT_S" python3 "$race" "$binary" --json "$out/race.json" \
                    $(pick "" "--quick") ${device:+--device "$device"} >> "$tmp/text" 2>&1 < /dev/null
            fi ;;
    esac
}

# One phase: its text and documents reach the disk when it ends.
phase() {
    name=$1 documents=0 into=-
    rm -f "$tmp"/document.* "$tmp/profile"
    : > "$tmp/text"
    from=$(date +%s)
    run_phase "$name"
    rc=$?
    took=$(($(date +%s) - from))
    state=ended
    case "$rc" in
        0) verdict="as it should" ;;
        1) verdict="with a finding" ;;
        3) verdict="a device is missing" ;;
        4) verdict="inconclusive" ;;
        124 | 130 | 137) verdict="out of time" state=broken ;;
        *) verdict="failed" state=broken ;;
    esac
    head -n 1 "$tmp/text" | grep -q '^not run' && verdict=$(head -n 1 "$tmp/text")
    {
        printf '## %s (exit code %d, %d s)\n' "$name" "$rc" "$took"
        # The end says most; the beginning says what was asked.
        if [ "$(wc -c < "$tmp/text")" -gt "$MAX_BYTES" ]; then
            head -c 20000 "$tmp/text"
            printf '\n[... cut ...]\n'
            tail -c "$((MAX_BYTES - 20000))" "$tmp/text"
        else
            cat "$tmp/text"
        fi
    } >> "$out/output.txt"
    {
        printf '{"phase": "%s", "exit_code": %d, "seconds": %d, "quick": %d, "state": "%s"}\n' \
            "$name" "$rc" "$took" "$quick" "$state"
        # In the order in which they were made.
        i=1
        while [ "$i" -le "$documents" ]; do
            if [ -f "$tmp/document.$i" ] && [ "$(wc -c < "$tmp/document.$i")" -le "$MAX_DOCUMENT" ]; then
                cat "$tmp/document.$i"
                echo
            elif [ -f "$tmp/document.$i" ]; then
                say "$name: a document of $(wc -c < "$tmp/document.$i") bytes is not kept" >&2
            fi
            i=$((i + 1))
        done
    } >> "$out/records.json"
    printf '%s %s %s exit=%d seconds=%d %s\n' \
        "$state" "$name" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$rc" "$took" "$verdict" >> "$out/phases.txt"
    say "$name: $verdict (exit code $rc, $took s)"
    [ "$rc" -eq 0 ] || tail -n 3 "$tmp/text" | sed 's/^/    /'
}

ended() { grep -q "^ended $1 " "$out/phases.txt" 2> /dev/null; }
# The last line of a phase tells how it went.
failed() { grep " $1 " "$out/phases.txt" 2> /dev/null | tail -n 1 | grep -vq ' exit=0 '; }

environment
if [ -z "$device" ] && [ "$quick" -eq 0 ]; then
    # Nothing here is worth the time without a GPU.
    "$binary" devices --why --json "$tmp/found" > "$tmp/text" 2>&1 < /dev/null
    if ! grep -Eq '"class": ?"(discrete|integrated|virtual)"' "$tmp/found" 2> /dev/null; then
        cat "$tmp/text"
        say "no GPU is usable here (the reasons are above); --device LIST rehearses on other devices"
        exit 3
    fi
fi

left="" bad=""
for name in ${only:-$PHASES}; do
    [ -z "$only" ] || [ "$name" = "$only" ] || continue
    if [ -z "$only" ] && ended "$name"; then
        say "$name: ended before"
    elif [ -n "$span" ] && [ $(($(date +%s) - begun)) -ge "$span" ]; then
        left="$left $name"
        continue
    else
        phase "$name"
    fi
    ! failed "$name" || bad="$bad $name"
done

[ -z "$left" ] || say "left for another call:$left"
[ -z "$bad" ] || say "did not end as they should:$bad"
say "results: $out"
[ -z "$bad" ] || exit 1
[ -z "$left" ] || exit 3
