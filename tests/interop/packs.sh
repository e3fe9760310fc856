#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Every tag below some directories is packed and unpacked, and mounted packed:
# files are restored with their bytes, modes and times, and each view has the names,
# sizes and bytes of the original's.  By hand:
#
#     UCFS_FIXTURES="DIR..." packs.sh
#
# UCFS_FIXTURES	directories with checkpoints (default: tests/good)
#
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_programs ucfs ucckpt fusermount3 sha256sum
require_ucfs
make_scratch mnt
# Files below a private directory are packed for its owner only.
chmod 755 "$scratch"

# tree DIR: list everything below it with mode, size and time, and the digests of all files.
# Views that cannot be served fail in the same way when packed, so errors are compared, too.
tree() {
	(cd "$1" && find . ! -path ./.ucfs -printf '%P %M %s %T@\n' | sort &&
		find . -type f ! -path ./.ucfs -print0 | sort -z | xargs -0 -r sha256sum) 2>&1
}

# mount SOURCE: mount it, and wait until it is mounted.
mount() {
	ucfs "$1" "$mnt" >"$scratch/mount" 2>&1 && mountpoint -q "$mnt"
}

# views DIR: list the mounted views of tag $name.
views() {
	local view
	for view in universal hf fp32; do
		[ -e "$mnt/${name}_$view" ] && echo "view $view" && tree "$mnt/${name}_$view"
	done
}

tags=0 mounted=0
# pack_tag TAG
pack_tag() {
	local tag=$1 name run=$scratch/run

	name=$(basename "$tag")
	tags=$((tags + 1))
	rm -rf "$run"
	mkdir -p "$run/a" "$run/b"
	cp -a "$tag" "$run/a/$name"
	chmod -R u+w "$run/a/$name"
	ucckpt pack "$run/a/$name" -o "$run/b/$name.ucpack" >/dev/null || {
		fail "$tag: pack"
		return
	}
	ucckpt unpack "$run/b/$name.ucpack" -o "$run/back" >/dev/null || fail "$tag: unpack"
	cmp <(tree "$run/a/$name") <(tree "$run/back") || fail "$tag: unpacked"
	rm -rf "${run:?}/back"

	if ! mount "$run/a"; then
		mount "$run/b" && fail "$tag: mounts only when packed"
		mountpoint -q "$mnt" && fusermount3 -u "$mnt"
		return
	fi
	views >"$scratch/views"
	fusermount3 -u "$mnt"
	mount "$run/b" || { fail "$tag: mount of the pack: $(cat "$scratch/mount")"; return; }
	views >"$scratch/packed"
	fusermount3 -u "$mnt"
	# Messages contain the name of the directory or the pack.
	sed -i "s|$run/[ab]/||g; s|\.ucpack||g" "$scratch/views" "$scratch/packed"
	cmp "$scratch/views" "$scratch/packed" || fail "$tag: views"
	grep -q '^view universal' "$scratch/views" && mounted=$((mounted + 1))
	files=$((files + $(grep -c '^[0-9a-f]\{64\} ' "$scratch/views")))
}

files=0
while read -r tag; do
	pack_tag "$tag"
done < <(
	# shellcheck disable=SC2086 # a list
	find -L ${UCFS_FIXTURES:-"$good"} -name '*.pt' -printf '%h\n' |
		grep -v -e '/global_step[^/]*_\(universal\|fp32\)\(_ds[0-9.]*\)\?\(/\|$\)' -e /zero/ -e /save_16bit |
		sort -u
)
echo "packs: $tags directories packed and unpacked, $mounted of them with views of" \
	"$files files; $failures failures"
[ "$tags" -gt 0 ] || fail "no checkpoints found"
[ "$failures" = 0 ]
