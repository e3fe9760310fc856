#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A tag that is saved again under the mount is served again: in place or replaced,
# through the mount of its run and of itself, in all its views.  So is a Hugging Face
# directory.  Nobody sees bytes of two generations: readers of the old files get old
# bytes or EIO.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
old=$good/z1_fp32_dp2/global_step4
new=$good/z1_fp16_dp2/global_step4 # a tag with the same file names and other values

# Digests of each view in each generation.
for generation in old new; do
	mkdir "$tmp/$generation"
	cp -r "${!generation}" "$tmp/$generation/tag"
	mount_fg "$tmp/$generation" || finish
	mkdir "$tmp/$generation.views"
	cp -r "$mnt"/tag_* "$tmp/$generation.views"
	cp -r "$mnt/tag_dp3" "$tmp/$generation.views"
	unmount
done

# becomes TREE VIEW: true within 30 seconds, during which readers may get EIO and ESTALE.
becomes() {
	for _ in $(seq 150); do
		diff -r "$1" "$2" >"$tmp/diff" 2>&1 && return
		sleep 0.2
	done
	fail "$2 is not $1: $(head -n 3 "$tmp/diff")"
}

# Save in place, like DeepSpeed.
save_in_place() {
	for f in "$new"/*; do
		cat "$f" >"$1/${f##*/}"
	done
}

# Remove the tag before saving it again.
save_replaced() {
	mv "$1" "$tmp/removed"
	cp -r "$new" "$1"
}

for save in save_in_place save_replaced; do
	rm -rf "$tmp/removed" "$tmp/run"
	mkdir "$tmp/run"
	cp -r "$old" "$tmp/run/tag"
	mount_fg "$tmp/run" || finish
	for view in "$tmp"/old.views/*; do
		becomes "$view" "$mnt/${view##*/}"
	done
	name=zero/cube/fp32.pt
	exec 5<"$mnt/tag_universal/$name"
	cd "$mnt/tag_universal/zero" || fail "no zero/"
	$save "$tmp/run/tag"
	for view in "$tmp"/new.views/*; do
		becomes "$view" "$mnt/${view##*/}"
	done
	if cat <&5 >"$tmp/held" 2>/dev/null; then
		check "a file that was open has its old bytes" cmp "$tmp/held" "$tmp/old.views/tag_universal/$name"
	fi
	exec 5<&-
	check "no files of old directories" grep -q -E 'Stale|Input/output' <(cat cube/fp32.pt 2>&1 >/dev/null)
	cd "$tmp" || exit 1
	unmount

	# Mount the tag itself, whose root always has the same inode.
	rm -rf "$tmp/removed" "$tmp/run/tag"
	cp -r "$old" "$tmp/run/tag"
	mount_fg "$tmp/run/tag" || finish
	becomes "$tmp/old.views/tag_universal" "$mnt"
	$save "$tmp/run/tag"
	becomes "$tmp/new.views/tag_universal" "$mnt"
	unmount
done

# Save under other names, after the kernel has listed the old ones.
for ranks in 3 4; do
	mount_fg "$good/z3_fp32_dp$ranks/global_step4" || finish
	cp -r "$mnt" "$tmp/dp$ranks"
	unmount
done
rm -rf "$tmp/run/tag"
cp -r "$good/z3_fp32_dp3/global_step4" "$tmp/run/tag"
mount_fg "$tmp/run/tag" || finish
becomes "$tmp/dp3" "$mnt"
cp "$good"/z3_fp32_dp4/global_step4/* "$tmp/run/tag"
becomes "$tmp/dp4" "$mnt"
unmount

# A Hugging Face directory: saved in place, in other files, and in a format that is preferred to
# the old one, which stays.
hf_of() {
	ucckpt convert "$@" >/dev/null 2>"$tmp/complaints" || fail "convert $*: $(cat "$tmp/complaints")"
}
hf_of --view hf "$old" "$tmp/old.hf"
hf_of --view fp32 "$old" "$tmp/old.bin"
hf_of --view hf "$new" "$tmp/new.hf"
hf_of --view hf --hf_shard_size 1KB "$new" "$tmp/new.parts"
check "it is in several files" test -f "$tmp/new.parts/model.safetensors.index.json"
for save in "old.hf new.hf" "old.hf new.parts" "old.bin new.hf" "new.parts old.hf"; do
	read -r before after <<<"$save"
	for generation in "$before" "$after"; do
		[ -d "$tmp/$generation.tree" ] || hf_of "$tmp/$generation" "$tmp/$generation.tree"
	done
	rm -rf "$tmp/model"
	cp -r "$tmp/$before" "$tmp/model"
	mount_fg "$tmp/model" || finish
	becomes "$tmp/$before.tree" "$mnt"
	exec 5<"$mnt/zero/cube/fp32.pt"
	[ "$save" = "old.bin new.hf" ] || rm "$tmp/model"/model*
	cp "$tmp/$after"/model* "$tmp/model"
	becomes "$tmp/$after.tree" "$mnt"
	if cat <&5 >"$tmp/held" 2>/dev/null; then
		check "a file that was open has its old bytes ($save)" \
			cmp "$tmp/held" "$tmp/$before.tree/zero/cube/fp32.pt"
	fi
	exec 5<&-
	unmount
done

# An incomplete save is not served.
rm -rf "$tmp/run/tag"
cp -r "$old" "$tmp/run/tag"
mount_fg "$tmp/run" || finish
becomes "$tmp/old.views/tag_universal" "$mnt/tag_universal"
rm "$tmp/run/tag"/*optim_states.pt
for _ in 1 2 3 4 5 6; do
	sleep 0.5
	cat "$mnt"/tag_universal/zero/*/fp32.pt >/dev/null 2>&1 && fail "served without shards"
done
cp "$old"/* "$tmp/run/tag"
becomes "$tmp/old.views/tag_universal" "$mnt/tag_universal"

# Modes and links of its files may change.
param=$mnt/tag_universal/zero/cube/fp32.pt
truth=$tmp/old.views/tag_universal/zero/cube/fp32.pt
(
	while [ ! -e "$tmp/stop" ]; do
		for f in "$tmp/run/tag"/*; do
			chmod 600 "$f"
			ln "$f" "$tmp/backup"
			chmod 644 "$f"
			rm "$tmp/backup"
		done
		sleep 0.1
	done
) &
toucher=$!
for _ in $(seq 30); do
	check "a file whose shards are touched" cmp "$param" "$truth"
	sleep 0.03
done
touch "$tmp/stop"
wait "$toucher"
rm "$tmp/stop"

# Bytes of the same size with the mtime set back are never read, neither during the write nor
# afterwards.  The kernel would have cached the file.
mkdir "$tmp/bytes"
cp -a "$tmp/run/tag" "$tmp/planned"
for f in "$old"/*optim_states.pt; do
	LC_ALL=C tr '\000-\377' '\001-\377\000' <"$f" >"$tmp/bytes/${f##*/}"
done
(
	while [ ! -e "$tmp/stop" ]; do
		for from in "$tmp/bytes" "$old"; do
			for f in "$from"/*optim_states.pt; do
				cat "$f" >"$tmp/run/tag/${f##*/}"
				touch -r "$tmp/planned/${f##*/}" "$tmp/run/tag/${f##*/}"
			done
			sleep 0.05
		done
	done
) &
rewriter=$!
mixed=0 refused=0
for _ in $(seq 400); do
	if ! dd if="$param" of="$tmp/held" bs=64k iflag=direct 2>/dev/null; then
		refused=$((refused + 1))
	elif ! cmp -s "$tmp/held" "$truth"; then
		mixed=$((mixed + 1))
	fi
done
touch "$tmp/stop"
wait "$rewriter"
check "bytes of two generations ($mixed reads)" test $mixed = 0
check "shards were rewritten" test $refused -gt 0
becomes "$tmp/old.views/tag_universal" "$mnt/tag_universal"

# A removed tag soon disappears from the mount.
rm -rf "$tmp/run/tag"
for _ in 1 2 3 4 5 6 7 8; do
	[ -e "$mnt/tag_universal" ] || break
	sleep 0.5
done
check "a tag that was removed is gone" test ! -e "$mnt/tag_universal"
unmount
finish
