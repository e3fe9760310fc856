#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# TAG_dpN in the mount of a run: a ZeRO checkpoint as N ranks would have saved it.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
sanitized_by ucckpt/recut mount/tree
require_fuse

run=$tmp/run
tag=global_step4
cp -r "$good/z1_fp32_dp4" "$run"
for r in 0 1 2 3; do echo "$r" >"$run/rng_state_$r.pth"; done

# absent NAME...: these are not in the mount.
absent() {
	local name
	for name; do
		check "there is no $name" test ! -e "$mnt/$name"
	done
}

mount_fg "$run" -o ranks=2,8_z3 || fail "cannot mount: $(cat "$tmp/log")"
check "ls shows what ranks= names" test "$(cd "$mnt" && echo ${tag}_dp*)" = "${tag}_dp2 ${tag}_dp8_z3"
check "a look-up makes any other" test -d "$mnt/${tag}_dp3"
check "which ls does not show" test "$(cd "$mnt" && echo ${tag}_dp3*)" = "${tag}_dp3*"
check "a use does" test -e "$mnt/${tag}_dp3/mp_rank_00_model_states.pt"
check "then ls shows it, too" test "$(cd "$mnt" && echo ${tag}_dp3*)" = ${tag}_dp3
absent ${tag}_dp0 ${tag}_dp4097 ${tag}_dp03 ${tag}_dp ${tag}_dp2_z4 ${tag}_dp2_z nothing_dp2 latest_dp2

# Anyone may look up thousands of names and list their views: this takes no memory, and evicts no
# other view.
resident() {
	sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$server/status"
}
names=(_dp{1..4096}{,_z1,_z2,_z3})
if [ "${sanitize:-no}" != no ]; then
	# All names take the same code path; lookups, which take 1 ms with sanitizers, are timed
	# without.
	names=(_dp{1..128}{,_z1,_z2,_z3})
fi
before=$(resident)
named=$(cd "$mnt" && stat -c %F "${names[@]/#/$tag}" | sort | uniq -c | sed 's/^ *//')
check "all names are there" test "$named" = "${#names[@]} directory"
grown=$(($(resident) - before))
check "names cost little: $grown KiB" test "$before" -gt 0 -a $grown -lt 32768
cp -r "$run/$tag" "$run/more"
cp -r "$run/$tag" "$run/most"
printf "$mnt/%s\n" "${names[@]/#/more}" "${names[@]/#/most}" | xargs stat -c %F >"$tmp/said" 2>&1
check "nor numbers that others need" test "$(sort "$tmp/said" | uniq -c | sed 's/^ *//')" = \
	"$((2 * ${#names[@]})) directory"
check "as all views of a tag" test -e "$mnt/more_hf"
rm -r "${run:?}/more" "${run:?}/most"
(cd "$mnt" && ls -U "${tag}"_dp{1..200}) >"$tmp/said" || fail "not all can be listed"
check "all have their files" test "$(grep -c optim_states "$tmp/said")" = $((200 * 201 / 2))
check "the last that were used are listed" test "$(cd "$mnt" && echo ${tag}_dp1*)" = \
	"$(cd "$mnt" && echo ${tag}_dp19{2..9})"
check "a view that was not used before opens" cmp "$mnt/${tag}_dp4/mp_rank_00_model_states.pt" \
	"$run/$tag/mp_rank_00_model_states.pt"
check "and one whose plan was made before" test "$(ls "$mnt/${tag}_dp3" | wc -l)" = 4

# In the order of ranks, as ls sorts these few.
check "stage 1: files of each rank" test "$(ls "$mnt/${tag}_dp3")" = \
	"$(printf '%s\n' mp_rank_00_model_states.pt zero_pp_rank_{0,1,2}_mp_rank_00_optim_states.pt)"
check "stage 3: names of stage 3" test "$(ls "$mnt/${tag}_dp8_z3")" = \
	"$(for r in {0..7}; do printf 'zero_pp_rank_%s_mp_rank_00_%s_states.pt\n' $r model $r optim; done)"
most=4096
[ "${sanitize:-no}" = no ] || most=64
for n in 1 2 3 $most; do
	ucckpt diff "$run" "$mnt/${tag}_dp$n" >"$tmp/said" || fail "$n ranks: $(cat "$tmp/said")"
done
while read -r view n stage; do
	ucckpt check --data "$mnt/${tag}_$view" >"$tmp/said" || fail "$view: $(cat "$tmp/said")"
	ucckpt info "$mnt/${tag}_$view" >"$tmp/said" || fail "$view: $(cat "$tmp/said")"
	check "info of $view" test "$(sed -n 's/^ZeRO stage *//p; s/^ranks *\([0-9]* data-parallel\),.*/\1/p' "$tmp/said")" = \
		"$stage"$'\n'"$n data-parallel"
done <<<"dp3 3 1
dp8_z3 8 3"
for f in "$run/$tag"/*.pt; do
	check "for as many ranks: what was saved" cmp "$f" "$mnt/${tag}_dp4/${f##*/}"
done
ucckpt convert --view zero --ranks 3 "$run" "$tmp/written/dp3" >/dev/null 2>&1
check "what convert writes" diff -r "$tmp/written/dp3" "$mnt/${tag}_dp3"
cp -r "$mnt/${tag}_dp3" "$tmp/copy"
ucckpt convert --view zero --ranks 4 "$tmp/copy" "$tmp/back" >/dev/null 2>&1
check "a copy, re-cut back: what was saved" diff -r "$run/$tag" "$tmp/back"
check "read only" bash -c "! touch '$mnt/${tag}_dp3/mp_rank_00_model_states.pt' 2>/dev/null"
mkdir "$run/${tag}_dp6"
sleep 1.1 # the kernel caches lookups for a second
check "a real directory is shown" test "$(ls "$mnt/${tag}_dp6")" = ""
absent rng_state_4.pth
unmount

# For a tag that cannot be re-cut, the reason is given.
mount_fg "$good/autoep2_dp2_z3" || fail "cannot mount: $(cat "$tmp/log")"
check "experts of stage 3: not any number" test ! -e "$mnt/${tag}_dp3/zero_pp_rank_0_mp_rank_00_optim_states.pt"
check "and why" grep -q 'with ZeRO-3, 3 must be a multiple' "$tmp/log"
check "but multiples" test -e "$mnt/${tag}_dp4/zero_pp_rank_3_mp_rank_00_optim_states.pt"
unmount

# The layers of a pipeline are included.
name=pp2_tp2_dp2_z1_bf16
mount_fg "$good/$name" || fail "cannot mount: $(cat "$tmp/log")"
for f in "$good/$name/$tag"/layer_*; do
	check "layers" cmp "$f" "$mnt/${tag}_dp5/${f##*/}"
done
check "5 ranks of each of 4" test "$(find "$mnt/${tag}_dp5" -name '*optim_states.pt' | wc -l)" = 20
unmount

# replace: a program without special knowledge resumes.
mount_fg "$run" -o ranks=6,replace || fail "cannot mount: $(cat "$tmp/log")"
check "the tag itself is re-cut" test "$(find "$mnt/$tag" -name '*optim_states.pt' | wc -l)" = 6
ucckpt diff "$run" "$mnt" >"$tmp/said" || fail "replace: $(cat "$tmp/said")"
check "latest as it was" cmp "$run/latest" "$mnt/latest"
check "other views, too" test -d "$mnt/${tag}_universal/zero"
for r in 0 1 2 3 4 5; do
	check "rank $r has the random state of r mod 4" test "$(cat "$mnt/rng_state_$r.pth")" = $((r % 4))
done
absent rng_state_6.pth rng_state.pth random_states_0.pkl
check "ls shows each once" test "$(cd "$mnt" && echo rng_state*)" = "$(echo rng_state_{0..5}.pth)"
unmount
ucckpt -o ranks=6,replace extract "$run" "rng_state_*" "$tmp/extracted" >"$tmp/said" 2>&1
check "a copy has all" test "$(cat "$tmp"/extracted/rng_state_*)" = "$(printf '%s\n' 0 1 2 3 0 1)"
mount_fg "$run" -o ranks=1,replace || fail "cannot mount: $(cat "$tmp/log")"
check "one rank has a file without a number" test "$(cat "$mnt/rng_state.pth")" = 0
check "ls shows it, too" test "$(cd "$mnt" && echo rng_state.*)" = rng_state.pth
unmount

# The source is a single tag.
mount_fg "$run/$tag" -o view=zero,ranks=2_z3 || fail "cannot mount: $(cat "$tmp/log")"
ucckpt check "$mnt" >"$tmp/said" || fail "a tag alone: $(cat "$tmp/said")"
check "a tag alone" test "$(find "$mnt" -name '*model_states.pt' | wc -l)" = 2
unmount

# An impossible re-cut has no view, and a warning gives the reason.
mount_fg "$good/meg_tp2_dp1_z1_bf16" || fail "cannot mount: $(cat "$tmp/log")"
absent ${tag}_dp2_z3 ${tag}_dp1_z3
check "stages 1 and 2 are" test -d "$mnt/${tag}_dp2_z1" -a -d "$mnt/${tag}_dp1_z2"
for name in dp2_z3 dp1_z3; do
	check "${tag}_$name: says why" grep -q "${tag}_$name: .*the ZeRO stage cannot change" "$mnt/.ucfs/errors"
done
unmount

# refused WHY SOURCE OPTIONS
refused() {
	ucfs "$2" "$mnt" -o "$3" >"$tmp/said" 2>&1 && fail "$3: not refused"
	check "$3: says why" grep -q -e "$1" "$tmp/said"
}
refused 'needs ranks=N, with one N' "$run/$tag" view=zero
refused 'needs ranks=N, with one N' "$run/$tag" view=zero,ranks=2,3
refused 'needs ranks=N, with one N' "$run" replace
refused 'not a number of ranks' "$run" ranks=0
refused 'not a number of ranks' "$run" ranks=2,4097
refused 'also needs view=zero' "$run/$tag" ranks=2
refused 'option view: not a tag directory' "$run" view=zero,ranks=2
finish
