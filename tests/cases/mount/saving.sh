#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# find, du and rsync over a mount succeed at any moment of a save: of a new tag, of the only one,
# over an old one.  A view is listed as soon as it is usable, and not before.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
mkdir "$tmp/run"
old=$good/z1_fp32_dp2/global_step4
new=$good/z1_fp16_dp2/global_step4 # a tag with the same file names
cp -r "$old" "$tmp/run/global_step2"
printf global_step2 >"$tmp/run/latest"

# walks WHEN [again]: walk the mount at once, and again after the kernel's cached lookups have
# expired.
walks() {
	local look
	for look in at_once "${@:2}"; do
		[ $look = at_once ] || sleep 1.1
		find "$mnt" -ls >/dev/null 2>"$tmp/said" || fail "find, $1: $(head -n 2 "$tmp/said")"
		du -s "$mnt" >/dev/null 2>"$tmp/said" || fail "du, $1: $(head -n 2 "$tmp/said")"
		if command -v rsync >/dev/null; then
			rsync -a --delete "$mnt/" "$tmp/copy" >"$tmp/said" 2>&1 || fail "rsync, $1: $(head -n 2 "$tmp/said")"
		fi
	done
}

# save FROM TO: each file is empty for a while, then half written, then whole.
save() {
	local f name at
	mkdir -p "$2"
	walks "with a directory"
	for f in "$1"/*; do
		name=${f##*/}
		for at in 0 2 1; do
			if [ $at = 0 ]; then
				: >"$2/$name"
			else
				head -c $(($(stat -c %s "$f") / at)) "$f" >"$2/$name"
			fi
			walks "1/$at of $name"
		done
	done
}

# appears NAME TAG
appears() {
	for _ in $(seq 100); do
		[ -e "$mnt/$1" ] && grep -q "^$1\$" <(ls "$mnt") && return
		sleep 0.1
	done
	fail "$1 does not appear: $(cat "$tmp/log")"
}

mount_fg "$tmp/run" || finish
walks "before"
rm -rf "$tmp/copy"

save "$new" "$tmp/run/global_step4"
check "the pointer does not change before latest" test "$(cat "$mnt/latest_universal")" = global_step2_universal
printf global_step4 >"$tmp/run/latest"
appears global_step4_universal
sleep 1.1
check "then it does" test "$(cat "$mnt/latest_universal")" = global_step4_universal

# Model states whose optimizer is saved later are not yet a checkpoint.
mkdir "$tmp/run/global_step5"
cp "$old"/*model_states.pt "$tmp/run/global_step5"
walks "without the optimizer" again
check "no view of it is listed" test -z "$(ls "$mnt" | grep global_step5_)"
cp "$old"/*optim_states.pt "$tmp/run/global_step5"
sleep 1.1
check "all are, at the first look" test "$(ls -d "$mnt"/global_step5_* | wc -l)" = 4
rm -r "$tmp/run/global_step5"

# Save over the old tag.
save "$new" "$tmp/run/global_step2"
appears global_step2_universal
walks "in the end" again
check "the new one is served" diff -r "$mnt/global_step2_universal" "$mnt/global_step4_universal"

# The tag being saved is the only one.
rm -r "$tmp/run/global_step2" "$tmp/run/global_step4"
walks "without a tag" again
save "$old" "$tmp/run/global_step6"
appears global_step6_universal
walks "of the only one" again
unmount

# Walk all the time.
mount_fg "$tmp/run" -o ranks=3 || finish
(
	for _ in 1 2; do
		for from in "$new" "$old"; do
			for f in "$from"/*; do
				head -c 5000 "$f" >"$tmp/run/global_step6/${f##*/}"
				sleep 0.1
				cat "$f" >"$tmp/run/global_step6/${f##*/}"
			done
			printf global_step6 >"$tmp/run/latest"
			sleep 0.2
		done
	done
) &
saver=$!
while kill -0 $saver 2>/dev/null; do
	find "$mnt" -ls >/dev/null 2>"$tmp/said" || fail "find, meanwhile: $(head -n 2 "$tmp/said")"
	du -s "$mnt" >/dev/null 2>"$tmp/said" || fail "du, meanwhile: $(head -n 2 "$tmp/said")"
done
unmount
finish
