#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A second mount of an unchanged checkpoint takes the model from the index and
# does not parse it; an index that is stale, damaged or not ours is refused.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
mnt=$tmp/mnt
run=$tmp/run
file=$tmp/index

cp -r "$good/meg_tp2_dp2_z1_bf16" "$run"
tag=$run/$(tag_of meg_tp2_dp2_z1_bf16)

# The tree and its bytes.
sums() {
	(cd "$mnt" && find . -type f -exec md5sum {} + | sort)
}

# learn NAME OPTION...: mount, read everything, unmount; sums go to $tmp/NAME.
learn() {
	local -r name=$1
	shift
	mount_fg "$tag" "$@" || return
	sums >"$tmp/$name"
	unmount
}

# The log does not mention an index.
silent() {
	[ -f "$tmp/log" ] && ! grep index "$tmp/log"
}

# Overwrites the beginning of every model-states file and puts its mtime back.
hide_pickles() {
	for f in "$tag"/*model_states.pt; do
		cp -p "$f" "$tmp/saved-$(basename "$f")"
		touch -r "$f" "$tmp/stamp"
		printf 'no pickle' | dd of="$f" conv=notrunc status=none
		touch -r "$tmp/stamp" "$f"
	done
}
show_pickles() {
	for f in "$tag"/*model_states.pt; do
		dd if="$tmp/saved-$(basename "$f")" of="$f" conv=notrunc status=none
		touch -r "$tmp/saved-$(basename "$f")" "$f"
	done
}

learn fresh -o index=none
check "index=none leaves nothing" test ! -e "$XDG_CACHE_HOME"
learn none -o index=none
check "nor does index=none" test ! -e "$XDG_CACHE_HOME"

# --- the second mount ----------------------------------------------------------

learn first
check "there is one file in the cache" \
	test "$(find "$XDG_CACHE_HOME/ucfs" -type f -name '*.index' | wc -l)" = 1
check "and no other" test "$(find "$XDG_CACHE_HOME" -type f | wc -l)" = 1
learn second
check "the second mount shows the same" cmp -s "$tmp/first" "$tmp/second"
check "as one without index" cmp -s "$tmp/fresh" "$tmp/second"
check "and has nothing to say of it" silent

hide_pickles
for index in "-o index=none" ""; do
	# shellcheck disable=SC2086 # two words or none
	check "a write whose mtime was put back is noticed $index" \
		test "$(ucfs "$tag" "$mnt" $index 2>&1 | grep -c '\.pt: ')" -gt 0
done
show_pickles

# --- a mount that is killed --------------------------------------------------------

rm -r "$XDG_CACHE_HOME"
mount_fg "$tag" || finish
sums >"$tmp/killed"
written() { find "$XDG_CACHE_HOME" -name '*.index' 2>/dev/null | grep -q .; }
for ((i = 0; i < 300; i++)); do
	! written || break
	sleep 0.1
done
kill -KILL "$server"
wait "$server" 2>/dev/null
server=
fusermount3 -u "$mnt"
check "what a mount has learned is kept while it goes on" written
learn after_killed
check "and is used" silent
check "and right" cmp -s "$tmp/killed" "$tmp/after_killed"

# --- changes ----------------------------------------------------------------------

shard=$(find "$tag" -name '*optim_states.pt' | sort | tail -n 1)
touch "$shard"
learn touched
check "a shard with another time is noticed" \
	test "$(grep -c 'has changed; reading the files' "$tmp/log")" = 1
check "and the tree is right" cmp -s "$tmp/fresh" "$tmp/touched"
learn again
check "the index has been made again" silent

cp "$shard" "$tmp/copy" && mv "$tmp/copy" "$shard"
learn replaced
check "a shard that was replaced is noticed" \
	grep -q 'has changed; reading the files' "$tmp/log"
check "and the tree is right" cmp -s "$tmp/fresh" "$tmp/replaced"

# --- an index named by the user ------------------------------------------------------------

learn own -o index="$file"
check "index=FILE" test -s "$file"
check "is for the user alone" test "$(stat -c %a "$file")" = 600
learn own_again -o index="$file"
check "and is used" silent

# damaged WHAT COMMAND...: after COMMAND one line reports it, and the tree is
# right.
damaged() {
	local -r how=$1
	shift
	"$@"
	learn damaged -o index="$file"
	check "$how: one line says so" \
		test "$(grep -c "$file: .*; reading the files" "$tmp/log")" = 1
	check "$how: the tree is right" cmp -s "$tmp/fresh" "$tmp/damaged"
}
damaged "an index cut short" truncate -s -20 "$file"
learn healed -o index="$file"
check "it has been made again" silent
overwrite() {
	printf 'damage' | dd of="$file" bs=1 seek="$1" conv=notrunc status=none
}
damaged "an index with a damaged frame" overwrite $(($(stat -c %s "$file") / 2))
damaged "an index that others can write to" chmod 666 "$file"
check "which is left alone" test "$(stat -c %a "$file")" = 666
echo "my notes" >"$file"
damaged "a file that is not an index" true
check "it is left alone" grep -qx "my notes" "$file"

rm "$file"
echo "my notes" >"$tmp/notes"
ln -s notes "$file"
damaged "a link" true
check "it is not followed" grep -qx "my notes" "$tmp/notes"
check "and stays" test -L "$file"

mkdir "$tmp/dir"
learn nowhere -o index="$tmp/none/such"
check "a directory that is not there: a line, and nothing else" \
	grep -q "no index: $tmp/none/such" "$tmp/log"
check "an option without a name is refused" \
	grep -q "not a file name" <(ucfs "$tag" "$mnt" -o index= 2>&1)

# --- a run with several tags -------------------------------------------------------------

cp -r "$tag" "$run/global_step1"
mount_fg "$run" -o index="$file.run" || finish
ls "$mnt"/*_universal/zero >/dev/null
unmount
mount_fg "$run" -o index="$file.run" || finish
ls "$mnt"/*_universal/zero >/dev/null
unmount
check "the index of a run has all its tags" silent
finish
