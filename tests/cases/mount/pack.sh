#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Packed checkpoints are mounted and read like their directories: every view, byte for byte, and
# every command of ucckpt.  Damage gives EIO and is named.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse

# tree DIR: list everything below it with mode, size and time, and the digest of all bytes.
tree() {
	(cd "$1" && find . ! -path ./.ucfs -printf '%P %M %s %TY-%Tm-%Td %TT\n' |
		sort && find . -type f -print0 | sort -z | xargs -0 cat | sha256sum)
}

# packed_as_original NAME: compare the views of a run's newest tag.
packed_as_original() {
	local run=$good/$1 tag
	tag=$(basename "$(dirname "$(ls "$run"/*/*_optim_states.pt | tail -n 1)")")

	rm -rf "$tmp/run"
	mkdir "$tmp/run"
	cp -a "$run/." "$tmp/run/"
	chmod -R u+w "$tmp/run"
	mount_fg "$tmp/run" || return
	for view in universal hf fp32; do
		tree "$tmp/mnt/${tag}_$view" >"$tmp/$view" 2>&1
	done
	unmount

	ucckpt pack "$tmp/run/$tag" >/dev/null || fail "$1: pack"
	rm -r "${tmp:?}/run/$tag"
	# Directories above the source, such as $tmp, may deny access to others.
	chmod 644 "$tmp/run/$tag.ucpack"
	mount_fg "$tmp/run" || return
	for view in universal hf fp32; do
		tree "$tmp/mnt/${tag}_$view" >"$tmp/packed" 2>&1
		check "$1 $view" cmp "$tmp/$view" "$tmp/packed"
	done
	check "$1: latest_universal" test -e "$tmp/mnt/latest_universal"
	unmount
	mount_fg "$tmp/run/$tag.ucpack" || return
	tree "$tmp/mnt" | grep -v '^ d' >"$tmp/packed"
	check "$1: the pack itself is mounted" cmp <(grep -v '^ d' "$tmp/universal") "$tmp/packed"
	unmount
}

for name in z1_bf16_dp2 z3_fp32_dp2 dsuc_gpt2_z3_offload_dp4; do
	[ -d "$good/$name" ] && packed_as_original "$name"
done

# Commands of ucckpt.
run=$tmp/run
tag=$(basename "$run"/*.ucpack .ucpack)
original=$(echo "$good"/dsuc_gpt2_z3_offload_dp4/global_step*)
for path in "$run" "$run/$tag" "$run/$tag.ucpack"; do
	check "info $path" ucckpt info "$path" >/dev/null
	check "check $path" ucckpt check --data "$path" >/dev/null
	check "diff $path" ucckpt diff --strict "$path" "$original" >/dev/null
done
ucckpt convert "$run" "$tmp/a/tree" >/dev/null 2>&1 || fail "convert, packed"
ucckpt convert "$original" "$tmp/b/tree" >/dev/null 2>&1 || fail "convert"
check "convert writes the same" diff -r "$tmp/a" "$tmp/b"

# A directory takes precedence over a pack with its name.
mkdir "$run/$tag"
check "a directory hides its pack" test "$(ucckpt info "$run" | grep -c 'problem: ')" -gt 0
rmdir "$run/$tag"

# Extents of packed files.
mount_fg "$run" || finish
file=$(find "$tmp/mnt/${tag}_universal/zero" -name fp32.pt -size +2k | head -n 1)
ucckpt extents "$file" >"$tmp/extents"
check "extents that are packed are said to be" grep -q ' packed ' "$tmp/extents"
check "no extent is a source's" test "$(grep -c ' source  ' "$tmp/extents")" = 0
unmount

# Ends of the pack's blocks of the largest file.
size=$(stat -c %s "$run/$tag.ucpack")
cp "$run/$tag.ucpack" "$tmp/kept"
printf '\377\377\377\377\377\377\377\377' |
	dd of="$run/$tag.ucpack" bs=1 seek=$((size / 2)) conv=notrunc status=none
mount_fg "$run"
errors=0
for f in $(find "$tmp/mnt/${tag}_universal" -type f); do
	if cat "$f" >"$tmp/bytes" 2>"$tmp/said"; then
		check "$f: what is served is right" cmp -s "$tmp/bytes" "$tmp/b/tree/${f#"$tmp/mnt/${tag}_universal"}"
	else
		errors=$((errors + 1))
		check "$f: EIO" grep -q 'Input/output error' "$tmp/said"
	fi
done
check "some files are damaged" test "$errors" -gt 0
check "the log names pack, file and block" grep -q "$tag.ucpack: .*: block [0-9]* of extent" "$tmp/log"
unmount
check "ucckpt check finds it, too" test "$(ucckpt check --data "$run" 2>&1 | grep -c 'is damaged')" -gt 0
cp "$tmp/kept" "$run/$tag.ucpack"
head -c $((size - 1)) "$tmp/kept" >"$run/$tag.ucpack"
ucfs "$run" "$tmp/mnt" -f >"$tmp/said" 2>&1
check "a pack that was cut is not mounted" test $? != 0

finish
